//! Truncation by `truncate_prompt_tokens`: which tokens of a prompt the engine keeps, as in vLLM.

use super::Unknown;
use crate::request::ApiRequest;
use serde_json::Value;

/// The part of a prompt that the engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The last tokens, up to this number.
    Last(usize),
    /// The first tokens, up to this number.
    First(usize),
}

impl Cut {
    /// Reads the request's truncation, or returns `None` if it keeps every token.
    ///
    /// # Errors
    /// If only the engine can truncate the prompt: the limit is the engine's own (-1) or invalid.
    pub(super) fn from_request(request: &ApiRequest) -> Result<Option<Self>, Unknown> {
        let field = |name| request.body.get(name).filter(|value| !value.is_null());
        let Some(count) = field("truncate_prompt_tokens") else { return Ok(None) };
        let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| *count > 0).ok_or(Unknown::Truncated)?;
        match field("truncation_side").map(Value::as_str) {
            None | Some(Some("left")) => Ok(Some(Self::Last(count))),
            Some(Some("right")) => Ok(Some(Self::First(count))),
            Some(_) => Err(Unknown::Truncated),
        }
    }

    /// Maximum number of kept tokens.
    pub(super) const fn count(self) -> usize {
        match self {
            Self::Last(count) | Self::First(count) => count,
        }
    }

    /// The kept tokens.
    pub(super) fn apply(self, tokens: &[u32]) -> &[u32] {
        let kept = match self {
            Self::Last(count) => tokens.get(tokens.len().saturating_sub(count)..),
            Self::First(count) => tokens.get(..count),
        };
        kept.unwrap_or(tokens)
    }

    /// Truncates the tokens of a text that begins with `front` and ends with `back` special tokens, which are kept and
    /// counted. Returns `None` if the special tokens alone fill the truncated length.
    pub(super) fn apply_between(
        self,
        tokens: &[u32],
        front: usize,
        back: usize,
    ) -> Option<Vec<u32>> {
        if tokens.len() <= self.count() {
            return Some(tokens.to_vec());
        }
        let room = self.count().checked_sub(front + back).filter(|room| *room > 0)?;
        let text = tokens.get(front..tokens.len() - back)?;
        let text = match self {
            Self::Last(_) => Self::Last(room),
            Self::First(_) => Self::First(room),
        }
        .apply(text);
        Some([tokens.get(..front)?, text, tokens.get(tokens.len() - back..)?].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;
    use serde_json::json;

    fn of(fields: &Value) -> Result<Option<Cut>, Unknown> {
        let mut body = json!({"model": "m", "prompt": "x"});
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let request = ApiRequest::read(Kind::Completion, body.to_string().as_bytes());
        Cut::from_request(&request.expect("a request"))
    }

    #[test]
    fn the_last_tokens_stay_unless_the_request_says_the_first() {
        assert_eq!(of(&json!({})), Ok(None));
        assert_eq!(of(&json!({"truncate_prompt_tokens": null})), Ok(None));
        assert_eq!(of(&json!({"truncate_prompt_tokens": 3})), Ok(Some(Cut::Last(3))));
        for (side, expected) in [("left", Cut::Last(3)), ("right", Cut::First(3))] {
            let fields = json!({"truncate_prompt_tokens": 3, "truncation_side": side});
            assert_eq!(of(&fields), Ok(Some(expected)));
        }
        // -1 means the engine's maximum prompt length.
        for count in [json!(-1), json!(0), json!("3"), json!(1.5)] {
            let fields = json!({"truncate_prompt_tokens": count});
            assert_eq!(of(&fields), Err(Unknown::Truncated), "{fields}");
        }
        assert_eq!(Cut::Last(2).apply(&[1, 2, 3]), [2, 3]);
        assert_eq!(Cut::First(2).apply(&[1, 2, 3]), [1, 2]);
        assert_eq!(Cut::Last(9).apply(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(Cut::First(9).apply(&[1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn special_tokens_stay_and_count() {
        let tokens = [1, 5, 6, 7, 2];
        let last = |count| Cut::Last(count).apply_between(&tokens, 1, 1);
        assert_eq!(last(4), Some(vec![1, 6, 7, 2]));
        assert_eq!(last(3), Some(vec![1, 7, 2]));
        assert_eq!(last(2), None);
        assert_eq!(last(5), Some(tokens.to_vec()));
        assert_eq!(Cut::First(4).apply_between(&tokens, 1, 1), Some(vec![1, 5, 6, 2]));
        assert_eq!(Cut::Last(2).apply_between(&tokens, 0, 0), Some(vec![7, 2]));
    }
}
