//! The server against what nobody here wrote: recorded streams of vLLM's own block manager, and the
//! engines' own publisher classes, live. vLLM's is behind the feature `vllm`, because its wheel is
//! several hundred MB.

mod harness;
mod pools;
mod publishers;
mod streams;
