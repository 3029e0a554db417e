//! Replaces the placeholder tokens of images and other multimodal content by the tokens that an engine hashes.

use kvasir_proto::convert::ImageTokens;
use kvasir_proto::hash::{MultimodalSpan, multimodal_hash};
use ring::digest::{Context, SHA256};
use std::ops::Range;

/// First number of the range from which SGLang takes image tokens: above all vocabularies.
const SGLANG_BASE: u64 = 1_000_000;
/// Prefix that SGLang from 0.5.23 hashes before an image's hash.
const SGLANG_TAG: &[u8] = b"sglang-mm-wide-pad-v1";
/// Hexadecimal digits of a 64-bit hash.
const HASH_DIGITS: usize = 16;

/// An image, audio clip or other item of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The engine's identifier of the content. SGLang's identifier is a hash as a hexadecimal number, of which the last
    /// 16 digits count.
    pub identifier: String,
    /// The range of the image's placeholder tokens in the prompt.
    pub tokens: Range<usize>,
}

impl Image {
    /// The image's SGLang hash: the last 16 hexadecimal digits of the identifier. `None` if the identifier is not a
    /// hexadecimal number.
    #[must_use]
    pub fn hash(&self) -> Option<u64> {
        let digits = self.identifier.strip_prefix("0x").unwrap_or(&self.identifier);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let last = digits.get(digits.len().saturating_sub(HASH_DIGITS)..)?;
        u64::from_str_radix(last, 16).ok()
    }

    fn span(&self) -> MultimodalSpan {
        let Range { start, end } = self.tokens;
        MultimodalSpan { hash: multimodal_hash(&self.identifier), start, end }
    }
}

/// Returns the numbers by which an engine replaces an image's placeholder tokens, repeated from the image's first token
/// on. Empty if the engine keeps the placeholder tokens. `hash` is the image's SGLang hash.
#[must_use]
pub fn image_tokens(form: ImageTokens, hash: u64) -> Vec<u64> {
    match form {
        ImageTokens::Identifier => Vec::new(),
        ImageTokens::Sglang30Bit => vec![SGLANG_BASE + hash % (1 << 30)],
        ImageTokens::Sglang62Bit => {
            let mut hasher = Context::new(&SHA256);
            hasher.update(SGLANG_TAG);
            hasher.update(&hash.to_be_bytes());
            let digest = hasher.finish();
            let (quarters, _no_rest) = digest.as_ref().as_chunks();
            let number = |quarter: &[u8; 8]| u64::from_be_bytes(*quarter) & ((1 << 62) - 1);
            quarters.iter().map(|quarter| SGLANG_BASE + number(quarter)).collect()
        }
    }
}

/// A prompt's tokens and multimodal content as an engine with this `form` hashes them: for [`Prompt::wide_tokens`] and
/// [`Prompt::multimodal`]. The part of an image beyond the end of `tokens` is ignored.
///
/// If the engine makes tokens from hashes and an image's identifier is not a hash, the image is not replaced. Its
/// blocks match no cached block.
///
/// [`Prompt::wide_tokens`]: crate::Prompt::wide_tokens
/// [`Prompt::multimodal`]: crate::Prompt::multimodal
#[must_use]
pub fn with_images(
    mut tokens: Vec<u64>,
    images: &[Image],
    form: ImageTokens,
) -> (Vec<u64>, Vec<MultimodalSpan>) {
    let mut spans = Vec::new();
    for image in images {
        let numbers = match image.hash() {
            Some(hash) => image_tokens(form, hash),
            None => Vec::new(),
        };
        if numbers.is_empty() {
            spans.push(image.span());
            continue;
        }
        let Range { start, end } = image.tokens;
        let replaced = tokens.iter_mut().take(end).skip(start);
        for (token, number) in replaced.zip(numbers.iter().cycle()) {
            *token = *number;
        }
    }
    (tokens, spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Image tokens that SGLang 0.5.22 and 0.5.23 compute from hashes: the first release one token, the second four.
    fn golden() -> Vec<(u64, u64, [u64; 4])> {
        let lines = include_str!("../../proto/tests/data/image-tokens.txt").lines();
        let read = |line: &str| {
            let (hash, numbers) = line.split_once(' ').expect("a hash");
            let hash = u64::from_str_radix(hash, 16).expect("a hash");
            let numbers = numbers.split(' ').map(|number| number.parse::<u64>().expect("a number"));
            let [narrow, a, b, c, d] = numbers.collect::<Vec<_>>()[..] else { panic!("{line}") };
            (hash, narrow, [a, b, c, d])
        };
        lines.filter(|line| !line.starts_with('#')).map(read).collect()
    }

    fn image(identifier: &str, tokens: Range<usize>) -> Image {
        Image { identifier: identifier.to_owned(), tokens }
    }

    #[test]
    fn numbers_are_those_of_sglang() {
        let vectors = golden();
        assert_eq!(vectors.len(), 3);
        for (hash, narrow, wide) in vectors {
            assert_eq!(image_tokens(ImageTokens::Sglang30Bit, hash), [narrow]);
            assert_eq!(image_tokens(ImageTokens::Sglang62Bit, hash), wide);
            assert_eq!(image_tokens(ImageTokens::Identifier, hash), [0; 0]);
        }
    }

    #[test]
    fn a_hash_is_the_end_of_a_hexadecimal_number() {
        for (identifier, expected) in [
            ("1234567890ABcdef", Some(0x1234_5678_90ab_cdef)),
            ("0xff", Some(0xff)),
            ("ffff1234567890abcdef", Some(0x1234_5678_90ab_cdef)),
            ("", None),
            ("0x", None),
            ("cat.png", None),
            ("é234567890abcdefé", None),
        ] {
            assert_eq!(image(identifier, 0..1).hash(), expected, "{identifier}");
        }
    }

    #[test]
    fn numbers_stand_in_turn_in_the_place_of_tokens() {
        let tokens = [1, 2, 9, 9, 9, 9, 9, 3, 9];
        let (hash, narrow, wide) = golden()[0];
        let images = [image(&format!("{hash:x}"), 2..7), image("cat.png", 8..9)];
        let of = |form| with_images(tokens.to_vec(), &images, form);
        let plain = tokens.to_vec();
        let both: Vec<_> = images.iter().map(Image::span).collect();
        assert_eq!(of(ImageTokens::Identifier), (plain, both.clone()));
        let [a, b, c, d] = wide;
        assert_eq!(
            of(ImageTokens::Sglang62Bit),
            (vec![1, 2, a, b, c, d, a, 3, 9], both[1..].to_vec())
        );
        let n = narrow;
        assert_eq!(
            of(ImageTokens::Sglang30Bit),
            (vec![1, 2, n, n, n, n, n, 3, 9], both[1..].to_vec())
        );
        let beyond = [image("ff", 8..100)];
        let (cut, _) = with_images(tokens.to_vec(), &beyond, ImageTokens::Sglang30Bit);
        assert_eq!(cut.last(), Some(&(SGLANG_BASE + 0xff)));
        assert_eq!(cut.len(), tokens.len());
    }
}
