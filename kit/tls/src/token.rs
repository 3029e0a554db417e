//! Bearer tokens in files.

use crate::error::TlsError;
use crate::pem::{Contents, Source};
use crate::reload::Reloaded;
use std::path::PathBuf;
use std::sync::Arc;
use tonic::codegen::http::HeaderValue;

/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4 << 10;

/// A bearer token in a file, which is read again when it changes. It is never printed. Clones share it.
#[derive(Debug, Clone)]
pub struct Token {
    pub(crate) file: PathBuf,
    header: Arc<Reloaded<HeaderValue>>,
}

impl Token {
    /// Reads the file that `option` names: one line of printable ASCII characters, at most 4 KiB. Spaces around it are ignored.
    ///
    /// # Errors
    /// If the file cannot be read, or has no token.
    pub fn open(option: &'static str, file: PathBuf) -> Result<Self, TlsError> {
        let source = Source { option, path: file.clone() };
        let header = Reloaded::open(vec![source], |contents| {
            // The file is the only source.
            contents.first().map_or_else(|| Ok(HeaderValue::from_static("")), header)
        })?;
        Ok(Self { file, header: Arc::new(header) })
    }

    /// The current token as a header, `Bearer TOKEN`.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        HeaderValue::clone(&self.header.get())
    }
}

/// Converts the content of the token file to a header. Errors contain nothing of the file.
fn header(contents: &Contents) -> Result<HeaderValue, TlsError> {
    let token = contents.text()?.trim();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        let text = format!("must have one token of 1 to {TOKEN_BYTES_MAX} bytes");
        return Err(contents.unusable(text));
    }
    // Keys of engines may have spaces.
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header
        .map_err(|_error| contents.unusable("must have one line of printable ASCII characters"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_token_is_one_printable_line_and_no_error_shows_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let read = |text: &[u8]| {
            fs::write(&file, text).expect("a file");
            Token::open("token-file", file.clone()).map(|token| token.header.get())
        };
        for (text, expected) in [
            (&b" s3cret-42\n"[..], "Bearer s3cret-42"),
            (b"s3cret of  engines\r\n", "Bearer s3cret of  engines"),
        ] {
            let token = read(text).expect("a token");
            assert_eq!(token.to_str().ok(), Some(expected));
            assert!(!format!("{token:?}").contains("s3cret"), "{token:?}");
        }
        for text in [&b""[..], b"\n", b"s3cret\ntwo", b"s3cret\x07", b"s3cret\xff", &[b's'; 4097]] {
            let error = read(text).expect_err("no token").to_string();
            assert!(error.contains("token-file") && !error.contains("s3"), "{error}");
        }
        fs::remove_file(&file).expect("a file");
        assert!(Token::open("token-file", file).is_err());
    }
}
