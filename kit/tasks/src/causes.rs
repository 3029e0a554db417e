//! Formats an error with all its causes in one line.

use std::error::Error;

/// Returns the texts of an error and its causes, outermost first. Omits causes that an outer text already contains.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("no connection")]
        Silent(#[source] io::Error),
        #[error("listen: {0}")]
        Telling(#[source] io::Error),
        #[error(transparent)]
        Same(Box<Self>),
    }

    #[test]
    fn each_cause_is_named_once() {
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(causes(&Outer::Silent(refused())), "no connection: connection refused");
        assert_eq!(causes(&Outer::Telling(refused())), "listen: connection refused");
        let nested = Outer::Same(Box::new(Outer::Telling(refused())));
        assert_eq!(causes(&nested), "listen: connection refused");
    }
}
