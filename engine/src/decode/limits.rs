/// Most events in one payload. Above [`BATCH_EVENTS_MAX`], which binds publishers of our own
/// protocol: SGLang before 0.5.23 sends one event per page and its default page is one token, vLLM
/// 0.33 sends one event per removed block, so a large prefill is thousands of events.
///
/// [`BATCH_EVENTS_MAX`]: kvasir_proto::limits::BATCH_EVENTS_MAX
pub const PAYLOAD_EVENTS_MAX: usize = 65_536;
/// Most tokens in one event.
pub const EVENT_TOKENS_MAX: usize = 1 << 22;
/// Most extra keys or multimodal items in one event.
pub const EVENT_EXTRA_KEYS_MAX: usize = 65_536;
