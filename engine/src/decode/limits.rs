/// Maximum number of events in one payload. It exceeds [`BATCH_EVENTS_MAX`], the limit of Kvasir's own
/// protocol, because a large prefill is thousands of events. SGLang before 0.5.23 sends one event per page,
/// and its default page is one token. vLLM 0.33 sends one event per removed block.
///
/// [`BATCH_EVENTS_MAX`]: kvasir_proto::limits::BATCH_EVENTS_MAX
pub const PAYLOAD_EVENTS_MAX: usize = 65_536;
/// Maximum number of tokens in one event.
pub const EVENT_TOKENS_MAX: usize = 1 << 22;
/// Maximum number of extra keys or multimodal items in one event.
pub const EVENT_EXTRA_KEYS_MAX: usize = 65_536;
