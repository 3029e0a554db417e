//! A prompt's tokens with its images.

use kvasir_proto::convert::ImageTokens;
use kvasir_proto::limits::{MULTIMODAL_IDENTIFIER_BYTES_MAX, QUERY_MULTIMODAL_ITEMS_MAX};
use router_client::{HashedPrompt, Image, Prompt, with_images};
use serde_json::{Map, Value};

/// Tokens of a prompt, with the images among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    ids: Ids,
    images: Vec<Image>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ids {
    Narrow(Vec<u32>),
    /// Some ids exceed 32 bits: SGLang's replacements of image tokens.
    Wide(Vec<u64>),
}

impl From<Vec<u32>> for PromptTokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self { ids: Ids::Narrow(tokens), images: Vec::new() }
    }
}

impl From<Vec<u64>> for PromptTokens {
    fn from(tokens: Vec<u64>) -> Self {
        let narrow = |token: &u64| u32::try_from(*token).ok();
        let narrowed: Option<Vec<u32>> = tokens.iter().map(narrow).collect();
        let ids = narrowed.map_or(Ids::Wide(tokens), Ids::Narrow);
        Self { ids, images: Vec::new() }
    }
}

impl PromptTokens {
    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.ids {
            Ids::Narrow(tokens) => tokens.len() as u64,
            Ids::Wide(tokens) => tokens.len() as u64,
        }
    }

    /// Memory used, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let tokens = match &self.ids {
            Ids::Narrow(tokens) => size_of_val::<[u32]>(tokens),
            Ids::Wide(tokens) => size_of_val::<[u64]>(tokens),
        };
        let image = |image: &Image| size_of::<Image>() + image.identifier.len();
        tokens + self.images.iter().map(image).sum::<usize>()
    }

    /// Adds images to the prompt.
    ///
    /// # Errors
    /// If there are too many images, an image exceeds the prompt, or two images overlap. The message begins with the
    /// image's number.
    pub fn with_images(mut self, mut images: Vec<Image>) -> Result<Self, String> {
        let count = images.len();
        let limit = QUERY_MULTIMODAL_ITEMS_MAX;
        if count > limit {
            return Err(format!(" has {count} entries, the limit is {limit}"));
        }
        let tokens = self.count();
        for (number, image) in images.iter().enumerate() {
            let is_named = (1..=MULTIMODAL_IDENTIFIER_BYTES_MAX).contains(&image.identifier.len());
            if !is_named {
                let limit = MULTIMODAL_IDENTIFIER_BYTES_MAX;
                return Err(format!("[{number}].identifier must have 1 to {limit} bytes"));
            }
            if image.tokens.is_empty() || image.tokens.end as u64 > tokens {
                let range = &image.tokens;
                return Err(format!("[{number}] spans tokens {range:?} of {tokens}"));
            }
        }
        images.sort_by_key(|image| image.tokens.start);
        let mut pairs = images.iter().zip(images.iter().skip(1));
        if let Some((_, after)) =
            pairs.find(|(before, after)| after.tokens.start < before.tokens.end)
        {
            return Err(format!(" has two entries at token {}", after.tokens.start));
        }
        self.images = images;
        Ok(self)
    }

    /// Whether the prompt has images.
    #[must_use]
    pub fn has_images(&self) -> bool {
        !self.images.is_empty()
    }

    /// Hashes the prompt as the engines do. `form` returns the form of image tokens and is called only if there are
    /// images. `prompt` has all fields except the tokens.
    #[must_use]
    pub fn hashed(&self, prompt: Prompt<'_>, form: impl FnOnce() -> ImageTokens) -> HashedPrompt {
        if let (Ids::Narrow(tokens), []) = (&self.ids, self.images.as_slice()) {
            return Prompt { tokens, ..prompt }.hashed();
        }
        let wide = match &self.ids {
            Ids::Narrow(tokens) => tokens.iter().map(|token| u64::from(*token)).collect(),
            Ids::Wide(tokens) => tokens.clone(),
        };
        let form = if self.has_images() { form() } else { ImageTokens::Identifier };
        let (wide, multimodal) = with_images(wide, &self.images, form);
        Prompt { wide_tokens: &wide, multimodal: &multimodal, ..prompt }.hashed()
    }
}

/// Reads images in vLLM's render format: identifiers and placeholders by kind. Returns `None` if `features` has another
/// format.
pub(crate) fn read_features(features: &Value) -> Option<Vec<Image>> {
    if features.is_null() {
        return Some(Vec::new());
    }
    let lists = |name: &str| features.get(name).and_then(Value::as_object);
    let hashes = lists("mm_hashes")?;
    let places = lists("mm_placeholders")?;
    let mut images = Vec::new();
    for (kind, hashes) in hashes {
        let hashes = hashes.as_array()?;
        let places = places.get(kind)?.as_array()?;
        if hashes.len() != places.len() {
            return None;
        }
        for (hash, place) in hashes.iter().zip(places) {
            let place = place.as_object()?;
            images.push(read_image(hash, place, ["offset", "length"])?);
        }
    }
    Some(images)
}

/// Images in the format of Kvasir's contract. `None` if `list` has another format.
pub(crate) fn read_images(list: &Value) -> Option<Vec<Image>> {
    let read = |item: &Value| {
        let item = item.as_object()?;
        read_image(item.get("identifier")?, item, ["token_offset", "token_count"])
    };
    list.as_array()?.iter().map(read).collect()
}

fn read_image(identifier: &Value, place: &Map<String, Value>, fields: [&str; 2]) -> Option<Image> {
    let number = |name: &str| usize::try_from(place.get(name)?.as_u64()?).ok();
    let [start, count] = fields.map(number);
    let start = start?;
    let tokens = start..start.checked_add(count?)?;
    Some(Image { identifier: identifier.as_str()?.to_owned(), tokens })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FORMS: [ImageTokens; 3] =
        [ImageTokens::Identifier, ImageTokens::Sglang30Bit, ImageTokens::Sglang62Bit];

    fn hashed(tokens: &PromptTokens, form: ImageTokens) -> Vec<u64> {
        tokens.hashed(Prompt::new("m", 4, &[]), || form).local_hashes
    }

    #[test]
    fn a_prompt_without_images_is_the_same_for_all_engines() {
        let tokens: Vec<u32> = (0..10).collect();
        let plain = Prompt::new("m", 4, &tokens).hashed();
        let wide: Vec<u64> = (0..10).collect();
        for form in FORMS {
            let of = |tokens: PromptTokens| tokens.hashed(Prompt::new("m", 4, &[]), || form);
            assert_eq!(of(tokens.clone().into()), plain);
            assert_eq!(of(wide.clone().into()), plain, "narrow numbers are narrow tokens");
        }
    }

    #[test]
    fn images_are_hashed_as_each_engine_has_them() {
        let image =
            json!([{"identifier": "1234567890abcdef", "token_offset": 4, "token_count": 5}]);
        let images = read_images(&image).expect("images");
        let tokens = PromptTokens::from(vec![7_u32; 12]).with_images(images).expect("a prompt");
        let [identifier, narrow, wide] = FORMS.map(|form| hashed(&tokens, form));
        assert_eq!((identifier[0], narrow[0]), (wide[0], wide[0]), "before the image all agree");
        for at in 1..3 {
            let different = [identifier[at], narrow[at], wide[at]];
            assert_ne!(different[0], different[1]);
            assert_ne!(different[1], different[2]);
            assert_ne!(different[0], different[2]);
        }
        // Like a client that inserts the image tokens itself.
        let number = 1_000_000 + 0x1234_5678_90ab_cdef_u64 % (1 << 30);
        let mut replaced = vec![7_u64; 12];
        replaced[4..9].fill(number);
        assert_eq!(hashed(&replaced.into(), ImageTokens::Identifier), narrow);
    }

    #[test]
    fn features_are_read_as_vllm_writes_them() {
        let features = json!({
            "mm_hashes": {"image": ["a", "b"], "audio": ["c"]},
            "mm_placeholders": {
                "image": [{"offset": 1, "length": 2}, {"offset": 9, "length": 1}], "audio": [{"offset": 5, "length": 3}],
            },
            "kwargs_data": null,
        });
        let mut images = read_features(&features).expect("features");
        images.sort_by_key(|image| image.tokens.start);
        let of = |identifier: &str, tokens| Image { identifier: identifier.to_owned(), tokens };
        assert_eq!(images, [of("a", 1..3), of("c", 5..8), of("b", 9..10)]);
        assert_eq!(read_features(&Value::Null), Some(Vec::new()));
        for broken in [
            json!({}),
            json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}}),
            json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": []}}),
            json!({"mm_hashes": {"image": [1]}, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}),
            json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": -1, "length": 2}]}}),
        ] {
            assert_eq!(read_features(&broken), None, "{broken}");
        }
    }

    #[test]
    fn images_that_cannot_be_there_are_refused() {
        let refused = |images: &[(&str, std::ops::Range<usize>)]| {
            let image = |(identifier, tokens): &(&str, std::ops::Range<usize>)| Image {
                identifier: (*identifier).to_owned(),
                tokens: tokens.clone(),
            };
            let images = images.iter().map(image).collect();
            PromptTokens::from(vec![1_u32; 8]).with_images(images).expect_err("refused")
        };
        assert_eq!(refused(&[("a", 0..4), ("b", 3..5)]), " has two entries at token 3");
        assert_eq!(refused(&[("a", 0..4), ("b", 5..9)]), "[1] spans tokens 5..9 of 8");
        assert_eq!(refused(&[("a", 4..4)]), "[0] spans tokens 4..4 of 8");
        assert_eq!(refused(&[("", 0..4)]), "[0].identifier must have 1 to 256 bytes");
        let many = vec![("a", 0..1); QUERY_MULTIMODAL_ITEMS_MAX + 1];
        assert_eq!(refused(&many), " has 1025 entries, the limit is 1024");
    }
}
