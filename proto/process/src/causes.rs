//! An error with all that caused it, in one line.

use std::error::Error;

/// An error and its causes, from the outside in. One that says its cause itself is not followed by it.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
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
    fn each_cause_is_said_once() {
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(causes(&Outer::Silent(refused())), "no connection: connection refused");
        assert_eq!(causes(&Outer::Telling(refused())), "listen: connection refused");
        let nested = Outer::Same(Box::new(Outer::Telling(refused())));
        assert_eq!(causes(&nested), "listen: connection refused");
    }
}
