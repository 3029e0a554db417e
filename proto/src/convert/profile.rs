use super::shared::{check_count, check_name, check_required_name};
use super::{ConvertError, Problem};
use crate::limits::WORKER_LABELS_MAX;
use crate::pb;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The phases of inference that a worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// The worker does not state its role.
    #[default]
    Unspecified,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
    /// Prefill and decode.
    Both,
}

impl Role {
    const ALL: [(Self, &'static str, pb::WorkerRole); 4] = [
        (Self::Unspecified, "unspecified", pb::WorkerRole::Unspecified),
        (Self::Prefill, "prefill", pb::WorkerRole::Prefill),
        (Self::Decode, "decode", pb::WorkerRole::Decode),
        (Self::Both, "both", pb::WorkerRole::Both),
    ];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(role, ..)| role == self);
        f.write_str(name.map_or("", |(_, name, _)| name))
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().skip(1).find(|(_, name, _)| *name == text);
        let found = found.map(|(role, ..)| *role);
        found.ok_or_else(|| format!("{text:?} is not one of prefill, decode, both"))
    }
}

/// A kind of request that a model serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelType {
    /// Chat completions.
    Chat,
    /// Text completions.
    Completions,
}

impl ModelType {
    const ALL: [(Self, &'static str, pb::ModelType); 2] = [
        (Self::Chat, "chat", pb::ModelType::Chat),
        (Self::Completions, "completions", pb::ModelType::Completions),
    ];

    /// Reads the kind in a message; `None` for an unspecified field.
    ///
    /// # Errors
    /// If the value is unknown.
    pub fn read(field: &'static str, value: i32) -> Result<Option<Self>, ConvertError> {
        if value == i32::from(pb::ModelType::Unspecified) {
            return Ok(None);
        }
        let kind = Self::ALL.iter().find(|(.., at)| i32::from(*at) == value);
        let unknown = || ConvertError::new(field, Problem::UnknownValue(value));
        kind.map(|(kind, ..)| Some(*kind)).ok_or_else(unknown)
    }
}

impl From<ModelType> for pb::ModelType {
    fn from(kind: ModelType) -> Self {
        match kind {
            ModelType::Chat => Self::Chat,
            ModelType::Completions => Self::Completions,
        }
    }
}

/// The kinds of requests that a worker serves. An empty set means all kinds. Its text form is `chat+completions`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ModelTypes(BTreeSet<ModelType>);

impl ModelTypes {
    /// Whether the worker serves this kind.
    #[must_use]
    pub fn serves(&self, kind: ModelType) -> bool {
        self.0.is_empty() || self.0.contains(&kind)
    }
}

impl FromIterator<ModelType> for ModelTypes {
    fn from_iter<I: IntoIterator<Item = ModelType>>(kinds: I) -> Self {
        Self(kinds.into_iter().collect())
    }
}

impl fmt::Display for ModelTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stated = ModelType::ALL.iter().filter(|(kind, ..)| self.0.contains(kind));
        let names: Vec<_> = stated.map(|(_, name, _)| *name).collect();
        f.write_str(&names.join("+"))
    }
}

impl FromStr for ModelTypes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |part: &str| {
            let found = ModelType::ALL.iter().find(|(_, name, _)| *name == part.trim());
            let found = found.map(|(kind, ..)| *kind);
            found.ok_or_else(|| {
                format!("{part:?} is not chat or completions; put + between to state both")
            })
        };
        text.split('+').map(read).collect()
    }
}

/// Representation of an image's tokens in an engine's events, and in the tokens that the engine hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageTokens {
    /// Placeholder tokens, with identifiers beside the tokens that distinguish images (vLLM).
    Identifier,
    /// One number of 30 bits above 1,000,000 (SGLang until 0.5.22).
    Sglang30Bit,
    /// Four numbers of 62 bits above 1,000,000 in turn (SGLang from 0.5.23).
    Sglang62Bit,
}

impl ImageTokens {
    /// All variants, with their names.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Identifier, "identifier"),
        (Self::Sglang30Bit, "sglang-30-bit"),
        (Self::Sglang62Bit, "sglang-62-bit"),
    ];

    fn from_field(value: i32) -> Result<Option<Self>, ConvertError> {
        if value == i32::from(pb::ImageTokens::Unspecified) {
            return Ok(None);
        }
        let found =
            Self::ALL.iter().find(|(form, _)| i32::from(pb::ImageTokens::from(*form)) == value);
        let unknown = || ConvertError::new("image_tokens", Problem::UnknownValue(value));
        found.map(|(form, _)| Some(*form)).ok_or_else(unknown)
    }
}

impl From<ImageTokens> for pb::ImageTokens {
    fn from(form: ImageTokens) -> Self {
        match form {
            ImageTokens::Identifier => Self::Identifier,
            ImageTokens::Sglang30Bit => Self::Sglang30Bit,
            ImageTokens::Sglang62Bit => Self::Sglang62Bit,
        }
    }
}

impl fmt::Display for ImageTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(form, _)| form == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for ImageTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        let unknown = || format!("{text:?} is not one of identifier, sglang-30-bit, sglang-62-bit");
        found.map(|(form, _)| *form).ok_or_else(unknown)
    }
}

/// Facts about a worker that routers use. The index stores and returns them unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerProfile {
    /// The phases of inference that the worker runs.
    pub role: Role,
    /// Blocks that fit into each rank's accelerator.
    pub total_kv_blocks: Option<u64>,
    /// Maximum number of tokens that each rank computes in one step.
    pub max_num_batched_tokens: Option<u64>,
    /// Other facts, by key; at most [`WORKER_LABELS_MAX`].
    pub labels: BTreeMap<String, String>,
    /// The kinds of requests that the worker serves.
    pub model_types: ModelTypes,
    /// The form of image tokens at the worker's engine, if the worker states it.
    pub image_tokens: Option<ImageTokens>,
}

impl WorkerProfile {
    /// The first field in which two profiles differ, with both values as text.
    pub(super) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let number =
            |at: Option<u64>| at.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let images =
            |at: &Self| at.image_tokens.map_or_else(|| "none".to_owned(), |form| form.to_string());
        let pairs = |at: &Self| {
            let pairs: Vec<_> =
                at.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if pairs.is_empty() { "none".to_owned() } else { pairs.join(",") }
        };
        let fields = [
            ("profile.role", self.role.to_string(), other.role.to_string()),
            (
                "profile.total_kv_blocks",
                number(self.total_kv_blocks),
                number(other.total_kv_blocks),
            ),
            (
                "profile.max_num_batched_tokens",
                number(self.max_num_batched_tokens),
                number(other.max_num_batched_tokens),
            ),
            ("profile.labels", pairs(self), pairs(other)),
            ("profile.model_types", self.model_types.to_string(), other.model_types.to_string()),
            ("profile.image_tokens", images(self), images(other)),
        ];
        fields.into_iter().find(|(_, mine, theirs)| mine != theirs)
    }
}

impl TryFrom<pb::WorkerProfile> for WorkerProfile {
    type Error = ConvertError;

    fn try_from(profile: pb::WorkerProfile) -> Result<Self, ConvertError> {
        let role = Role::ALL.iter().find(|(.., value)| i32::from(*value) == profile.role);
        let unknown = || ConvertError::new("role", Problem::UnknownValue(profile.role));
        let (role, ..) = role.ok_or_else(unknown)?;
        check_count("labels", profile.labels.len(), WORKER_LABELS_MAX)?;
        let mut labels = BTreeMap::new();
        for (index, pb::Label { key, value }) in profile.labels.into_iter().enumerate() {
            let outer = format!("labels[{index}]");
            check_required_name("key", &key).map_err(|error| error.within(&outer))?;
            check_name("value", &value).map_err(|error| error.within(&outer))?;
            if labels.contains_key(&key) {
                return Err(ConvertError::new("key", Problem::Repeated(key)).within(outer));
            }
            labels.insert(key, value);
        }
        let mut model_types = BTreeSet::new();
        for value in profile.model_types {
            let kind = ModelType::read("model_types", value)?
                .ok_or_else(|| ConvertError::new("model_types", Problem::UnknownValue(value)))?;
            model_types.insert(kind);
        }
        Ok(Self {
            role: *role,
            total_kv_blocks: profile.total_kv_blocks,
            max_num_batched_tokens: profile.max_num_batched_tokens,
            labels,
            model_types: ModelTypes(model_types),
            image_tokens: ImageTokens::from_field(profile.image_tokens)?,
        })
    }
}

impl From<&WorkerProfile> for pb::WorkerProfile {
    fn from(profile: &WorkerProfile) -> Self {
        let role = Role::ALL.iter().find(|(role, ..)| *role == profile.role);
        let role = role.map_or(pb::WorkerRole::Unspecified, |(.., value)| *value);
        let labels = profile.labels.iter();
        let label =
            |(key, value): (&String, &String)| pb::Label { key: key.clone(), value: value.clone() };
        Self {
            role: role.into(),
            total_kv_blocks: profile.total_kv_blocks,
            max_num_batched_tokens: profile.max_num_batched_tokens,
            labels: labels.map(label).collect(),
            model_types: profile
                .model_types
                .0
                .iter()
                .map(|kind| pb::ModelType::from(*kind).into())
                .collect(),
            image_tokens: profile
                .image_tokens
                .map_or(pb::ImageTokens::Unspecified, pb::ImageTokens::from)
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> WorkerProfile {
        WorkerProfile {
            role: Role::Prefill,
            total_kv_blocks: Some(0),
            max_num_batched_tokens: Some(8_192),
            labels: BTreeMap::from([("zone".to_owned(), String::new())]),
            model_types: [ModelType::Completions].into_iter().collect(),
            image_tokens: Some(ImageTokens::Sglang30Bit),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = pb::WorkerProfile::from(&profile());
        assert_eq!(WorkerProfile::try_from(written), Ok(profile()));
        let empty = pb::WorkerProfile::from(&WorkerProfile::default());
        assert_eq!(empty, pb::WorkerProfile::default());
        for (role, name, _) in Role::ALL {
            let expected = if role == Role::Unspecified { None } else { Some(role) };
            assert_eq!(name.parse::<Role>().ok(), expected);
            assert_eq!(role.to_string(), name);
        }
    }

    #[test]
    fn kinds_of_requests_have_a_text_form() {
        let both: ModelTypes = "completions+chat".parse().expect("kinds");
        assert_eq!(both.to_string(), "chat+completions");
        assert!(both.serves(ModelType::Chat) && both.serves(ModelType::Completions));
        let chat: ModelTypes = "chat".parse().expect("a kind");
        assert!(chat.serves(ModelType::Chat) && !chat.serves(ModelType::Completions));
        assert!(ModelTypes::default().serves(ModelType::Chat), "who states none serves all");
        let error = "embeddings".parse::<ModelTypes>().expect_err("refused");
        assert_eq!(error, "\"embeddings\" is not chat or completions; put + between to state both");
    }

    #[test]
    fn forms_of_image_tokens_have_a_text_form() {
        for (form, name) in ImageTokens::ALL {
            assert_eq!((name.parse(), form.to_string().as_str()), (Ok(form), name));
            let mut stated = profile();
            stated.image_tokens = Some(form);
            assert_eq!(WorkerProfile::try_from(pb::WorkerProfile::from(&stated)), Ok(stated));
        }
        let error = "sglang".parse::<ImageTokens>().expect_err("refused");
        assert_eq!(error, "\"sglang\" is not one of identifier, sglang-30-bit, sglang-62-bit");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |change: fn(&mut pb::WorkerProfile), expected: &str| {
            let mut written = pb::WorkerProfile::from(&profile());
            change(&mut written);
            let error = WorkerProfile::try_from(written).expect_err("refused");
            assert_eq!(error.to_string(), expected);
        };
        check(|at| at.role = 9, "role has the unknown value 9");
        check(|at| at.model_types = vec![0], "model_types has the unknown value 0");
        check(|at| at.model_types = vec![1, 3], "model_types has the unknown value 3");
        check(|at| at.image_tokens = 4, "image_tokens has the unknown value 4");
        check(
            |at| at.labels.push(at.labels[0].clone()),
            "labels[1].key repeats zone: each may be given once",
        );
        check(|at| at.labels[0].key.clear(), "labels[0].key is required");
        check(
            |at| at.labels = vec![pb::Label::default(); WORKER_LABELS_MAX + 1],
            "labels has 65 entries, the limit is 64: send fewer",
        );
    }

    #[test]
    fn differences_are_in_words() {
        let other = |change: fn(&mut WorkerProfile)| {
            let mut other = profile();
            change(&mut other);
            profile().difference(&other).map(|(field, mine, theirs)| (field, mine + "/" + &theirs))
        };
        assert_eq!(other(|_| {}), None);
        let differs = |field, words: &str| Some((field, words.to_owned()));
        assert_eq!(other(|at| at.role = Role::Both), differs("profile.role", "prefill/both"));
        assert_eq!(
            other(|at| at.total_kv_blocks = None),
            differs("profile.total_kv_blocks", "0/none")
        );
        assert_eq!(other(|at| at.labels.clear()), differs("profile.labels", "zone=/none"));
        assert_eq!(
            other(|at| at.model_types = "chat".parse().expect("a kind")),
            differs("profile.model_types", "completions/chat")
        );
        assert_eq!(
            other(|at| at.image_tokens = None),
            differs("profile.image_tokens", "sglang-30-bit/none")
        );
    }
}
