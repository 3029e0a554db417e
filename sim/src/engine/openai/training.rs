//! Trains a small tokenizer on a text.

use anyhow::{Result, anyhow};
use tokenizers::Tokenizer;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// A byte-level tokenizer of at most `vocabulary` tokens (at least 256), trained on `text`. It can encode and decode
/// every text, and adds no special tokens.
///
/// # Errors
/// If the training fails.
pub fn train(text: &str, vocabulary: usize) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::new(BPE::default());
    let bytes = ByteLevel::default().add_prefix_space(false);
    tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut trainer = TrainerWrapper::BpeTrainer(trainer);
    tokenizer.train(&mut trainer, text.lines()).map_err(|why| anyhow!("train: {why}"))?;
    Ok(tokenizer)
}
