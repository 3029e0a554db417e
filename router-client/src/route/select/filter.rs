use super::decision::Removed;
use super::question::Constraints;
use kvasir_proto::convert::WorkerProfile;
use kvasir_proto::types::WorkerKey;

impl Constraints<'_> {
    /// Whether every rank may receive the request.
    #[must_use]
    pub fn is_none(&self) -> bool {
        let Self { pin, allowed, excluded, roles, labels, model_type } = *self;
        let has_none = pin.is_none() && allowed.is_none() && excluded.is_none();
        has_none && roles.is_empty() && labels.is_empty() && model_type.is_none()
    }

    /// Returns the first constraint that a rank violates, or `None` if it may receive the request. Loads are not
    /// considered.
    #[must_use]
    pub fn unmet(&self, key: &WorkerKey, profile: &WorkerProfile) -> Option<Removed> {
        let Self { pin, allowed, excluded, roles, labels, model_type } = *self;
        let worker = &key.worker;
        if pin.is_some_and(|pin| !pin.is(key)) {
            return Some(Removed::NotPinned);
        }
        if allowed.is_some_and(|allowed| !allowed.contains(worker)) {
            return Some(Removed::NotAllowed);
        }
        if excluded.is_some_and(|excluded| excluded.contains(worker)) {
            return Some(Removed::Excluded);
        }
        if !roles.is_empty() && !roles.contains(&profile.role) {
            return Some(Removed::Role);
        }
        if model_type.is_some_and(|kind| !profile.model_types.serves(kind)) {
            return Some(Removed::ModelType);
        }
        let has = |(key, value): &(String, String)| profile.labels.get(key) == Some(value);
        (!labels.iter().all(has)).then_some(Removed::Label)
    }
}
