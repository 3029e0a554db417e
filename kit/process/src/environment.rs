//! Warns about environment variables that look like options but are not. Without the warning, a misspelt variable would
//! be ignored silently.

use std::collections::BTreeSet;
use strsim::damerau_levenshtein;

/// Prefixes of the variables of each program. A variable belongs to the program with the longest matching
/// prefix; variables of other programs cause no warning.
pub const VARIABLE_PREFIXES: [&str; 5] =
    ["KVASIR_", "KVASIR_AGENT_", "KVASIR_GATEWAY_", "KVASIR_ROUTER_", "KVASIR_SERVE_"];

/// Variables of the repository's scripts and tests, which are set when scripts or tests start programs.
const TOOLS: [&str; 12] = [
    "KVASIR_CACHE",
    "KVASIR_COMMIT",
    "KVASIR_INDEXER_SERVER",
    "KVASIR_KVBM_AGENT",
    "KVASIR_OLDER_PROGRAMS",
    "KVASIR_OLDER_VERSION",
    "KVASIR_PYTHON",
    "KVASIR_REGENERATE",
    "KVASIR_ROCKSDB_CRC_FLAGS",
    "KVASIR_ROUTER",
    "KVASIR_SEED",
    "KVASIR_SEEDS",
];

/// Prefix of variables that tests pass to their own processes.
const TOOLS_PREFIX: &str = "KVASIR_TEST_";

/// Maximum edit distance at which a warning suggests an option.
const MISSPELT_LETTERS_MAX: usize = 3;

/// Returns a warning for each variable in `present` that has the program's `prefix` and is not one of its `known`
/// options. Warnings do not show values, which may be secret.
pub(crate) fn unknown_variables(
    prefix: &str,
    known: &BTreeSet<String>,
    present: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let is_unknown = |name: &String| {
        is_meant_for(prefix, name) && !known.contains(name) && !is_of_others(prefix, name)
    };
    let unknown: BTreeSet<String> = present.into_iter().filter(is_unknown).collect();
    unknown.into_iter().map(|name| warning(&name, known)).collect()
}

fn is_meant_for(prefix: &str, name: &str) -> bool {
    let fitting = VARIABLE_PREFIXES.into_iter().filter(|prefix| name.starts_with(prefix));
    fitting.max_by_key(|prefix| prefix.len()) == Some(prefix)
}

/// Whether the variable belongs to tools, or is set by Kubernetes for a service named `kvasir`: `KVASIR_SERVICE_HOST`,
/// `KVASIR_SERVICE_PORT_GRPC`, `KVASIR_PORT`, `KVASIR_PORT_50051_TCP_ADDR` and so on.
fn is_of_others(prefix: &str, name: &str) -> bool {
    // The service's name may end within the prefix.
    let rest = name.get(prefix.len() - 1..).unwrap_or_default();
    let is_port = rest.ends_with("_PORT")
        || rest.match_indices("_PORT_").any(|(at, word)| {
            rest.get(at + word.len()..)
                .is_some_and(|rest| rest.starts_with(|at: char| at.is_ascii_digit()))
        });
    let is_service = rest.ends_with("_SERVICE_HOST") || rest.contains("_SERVICE_PORT") || is_port;
    TOOLS.contains(&name) || name.starts_with(TOOLS_PREFIX) || is_service
}

fn warning(name: &str, known: &BTreeSet<String>) -> String {
    let near = known.iter().map(|option| (damerau_levenshtein(name, option), option)).min();
    let meant = near.filter(|(letters, _)| *letters <= MISSPELT_LETTERS_MAX);
    let meant = meant.map_or_else(String::new, |(_, option)| format!(": did you mean {option}?"));
    format!("the environment variable {name} is not an option and is ignored{meant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(prefix: &str, known: &[&str], present: &[&str]) -> Vec<String> {
        let known = known.iter().map(|name| (*name).to_owned()).collect();
        unknown_variables(prefix, &known, present.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn what_is_no_option_is_named_with_the_one_that_may_be_meant() {
        let known = ["KVASIR_LISTEN", "KVASIR_MAX_INDEX_BYTES", "KVASIR_CONFIG"];
        let present =
            ["KVASIR_LISTNE", "KVASIR_MAX_INDEX_BYTE", "KVASIR_COLOUR", "KVASIR_LISTEN", "PATH"];
        assert_eq!(
            warnings("KVASIR_", &known, &present),
            [
                "the environment variable KVASIR_COLOUR is not an option and is ignored",
                "the environment variable KVASIR_LISTNE is not an option and is ignored: did you mean \
                 KVASIR_LISTEN?",
                "the environment variable KVASIR_MAX_INDEX_BYTE is not an option and is ignored: did you mean \
                 KVASIR_MAX_INDEX_BYTES?",
            ]
        );
        let agent =
            warnings("KVASIR_AGENT_", &["KVASIR_AGENT_INDEXERS"], &["KVASIR_AGENT_INDEXER"]);
        let text = "the environment variable KVASIR_AGENT_INDEXER is not an option and is ignored: did you mean \
                    KVASIR_AGENT_INDEXERS?";
        assert_eq!(agent, [text]);
    }

    #[test]
    fn what_others_read_is_no_mistake() {
        let cluster = [
            "KVASIR_SERVICE_HOST",
            "KVASIR_SERVICE_PORT",
            "KVASIR_SERVICE_PORT_GRPC",
            "KVASIR_PORT",
            "KVASIR_PORT_50051_TCP",
            "KVASIR_PORT_50051_TCP_ADDR",
            "KVASIR_INDEX_PORT_9091_TCP_PORT",
            "KVASIR_AGENT_SERVICE_HOST",
            "KVASIR_AGENT_PORT",
        ];
        for prefix in VARIABLE_PREFIXES {
            assert_eq!(warnings(prefix, &[], &TOOLS), [""; 0]);
            assert_eq!(warnings(prefix, &[], &cluster), [""; 0]);
            assert_eq!(
                warnings(prefix, &[], &["KVASIR_TEST_FULL_FOLDER", "KVASIRX", "X_KVASIR_"]),
                [""; 0]
            );
        }
        for prefix in &VARIABLE_PREFIXES[1..] {
            let listne = format!("{prefix}LISTNE");
            assert_eq!(warnings("KVASIR_", &[], &[&listne]), [""; 0], "of another program");
            assert_eq!(warnings(prefix, &[], &[&listne]).len(), 1, "{listne}");
        }
        assert_eq!(warnings("KVASIR_AGENT_", &[], &["KVASIR_LISTEN"]), [""; 0], "the server's");
    }
}
