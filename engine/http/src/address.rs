//! Addresses of engines' APIs.

use hyper::Uri;
use kvasir_tls::Dialer;

/// Parses an engine's address: `http://HOST:PORT` or `https://HOST:PORT`, with a path if its API is below one.
///
/// # Errors
/// If the text is not such an address; the message gives the reason.
pub fn read_address(text: &str) -> Result<Uri, String> {
    let why = "must be http://HOST:PORT or https://HOST:PORT";
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|error| format!("{why}: {error}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_good = is_http && uri.host().is_some() && uri.query().is_none();
    if is_good { Ok(uri) } else { Err(format!("{text:?} {why}")) }
}

/// Checks that there are authorities for an engine at an `https://` address.
///
/// # Errors
/// If there are none; the message gives the fix.
pub fn need_authority(url: &Uri, dialer: &Dialer) -> Result<(), String> {
    if url.scheme_str() == Some("https") && !dialer.has_authorities() {
        return Err(format!(
            "{url} needs the certificate of the authority that signed the engine's: state it with --tls-ca FILE"
        ));
    }
    Ok(())
}
