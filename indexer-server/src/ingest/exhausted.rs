use kvasir_process::shares::Exhausted;
use std::fmt;

/// Limited resources of the server that registrations use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    /// Workers.
    Workers,
    /// Sockets to the endpoints of engines.
    Sockets,
    /// Bytes of names and labels.
    Bytes,
}

/// A registration exceeds a limit. The message does not reveal how much other tenants use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationsExhausted {
    /// The exhausted resource.
    pub what: Scarce,
    /// Amount that the registration needs.
    pub requested: usize,
    /// Tenant of the registration.
    pub tenant: Box<str>,
    /// The exceeded limit.
    pub limit: Exhausted,
}

impl Scarce {
    const fn unit(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Sockets => "sockets for endpoints",
            Self::Bytes => "bytes of registrations",
        }
    }

    /// Tells an operator how to free the exhausted resource.
    const fn advice(self) -> &'static str {
        match self {
            Self::Workers => "remove some first",
            Self::Sockets => {
                "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd), half of which may be such sockets, \
                 remove workers first, or run agents beside the engines"
            }
            Self::Bytes => "shorten lora_names and labels, or remove workers first",
        }
    }
}

impl fmt::Display for RegistrationsExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, requested, tenant, limit: Exhausted { free, max, is_share } } = self;
        let unit = what.unit();
        let advice = what.advice();
        if *is_share {
            write!(
                f,
                "the registration takes {requested} {unit}, and tenant {tenant:?} has {free} left of {max}, its share \
                 (--tenant-share): {advice}"
            )
        } else {
            write!(
                f,
                "the registration takes {requested} {unit}, and all tenants together may have {max}: {advice}"
            )
        }
    }
}

impl std::error::Error for RegistrationsExhausted {}
