use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::sync::LazyLock;

/// Version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Git commit of the source, from the variable `KVASIR_COMMIT` of the build; empty without it. The builds of images and
/// wheels set it. A build by Cargo does not, because each commit would then compile everything anew.
pub const COMMIT: &str = match option_env!("KVASIR_COMMIT") {
    Some(commit) => commit,
    None => "",
};

/// Version with the commit, as `--version` prints it.
pub static VERSION_TEXT: LazyLock<String> = LazyLock::new(|| match COMMIT {
    "" => VERSION.to_owned(),
    commit => format!("{VERSION} ({commit})"),
});

pub(super) fn register(registry: &mut Registry) {
    let info = Info::new([("version", VERSION), ("commit", COMMIT)]);
    registry.register("build", "Version of this server, and the git commit of its source", info);
}
