use super::*;
use crate::telemetry::VERSION;
use crate::text::{KeyValues, Setting, Settings, Unset};
use std::io::Write;
use tempfile::NamedTempFile;

#[derive(Debug, Clone, Default, PartialEq)]
struct Limits {
    calls: Unset<u32>,
    name: Unset<String>,
}

impl Settings for Limits {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("calls", &mut self.calls), ("name", &mut self.name)]
    }
}

/// The options of a small program, with an environment that cargo sets for each test.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Work")]
struct Small {
    /// Address of the port. The port serves clients and is open as long as the program runs, so that this text needs
    /// more than one line
    #[arg(long, default_value = "a:1", help_heading = "Ports")]
    listen: String,
    /// Limits of work
    #[arg(long, value_name = PAIRS, default_value_t)]
    limits: KeyValues<Limits>,
    /// File with the key
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Files to read
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    input: Vec<String>,
}

/// Stated once for all programs with these options.
const SHARED: &[Retired] = &[Retired::ignored("threads", "one thread for each core")];

impl Options for Small {
    const PROGRAM: &'static str = "small";
    const ABOUT: &'static str = "A small program";
    const EXAMPLE: &'static str = "--listen b:2";
    const VARIABLE_PREFIX: &'static str = "CARGO_";
    const SHORT_HELP: &'static [&'static str] = &["listen"];
    const RETIRED: &'static [&'static [Retired]] = &[
        SHARED,
        &[
            Retired::ignored("verbose", "all messages are logged"),
            Retired::key("calls-max", "limits", "calls"),
            Retired::key("work-name", "limits", "name"),
            Retired::renamed("seed-file", "key-file"),
            Retired::renamed("read", "input"),
        ],
    ];
}

fn run(arguments: &[&str]) -> Result<Action<Small>, ConfigError> {
    let arguments = ["small"].iter().chain(arguments).map(OsString::from);
    read::<Small, Small>(arguments, |options| Ok(options.clone()))
}

/// The options and the warnings.
fn options(arguments: &[&str]) -> (Small, Vec<String>) {
    match run(arguments) {
        Ok(Action::Run(options, warnings)) => (*options, warnings),
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn printed(arguments: &[&str]) -> String {
    match run(arguments) {
        Ok(Action::Print(text)) => text,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn refused(arguments: &[&str]) -> String {
    run(arguments).expect_err("a refusal").to_string()
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("a written file");
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("a path in UTF-8")
}

#[test]
fn a_retired_option_without_effect_is_accepted_in_each_form() {
    let (plain, none) = options(&[]);
    assert_eq!(none, [""; 0]);
    for arguments in [
        &["--verbose"][..],
        &["--verbose=false"],
        &["--verbose", "true", "--listen", "a:1"],
        &["--verbose", "--listen=a:1"],
        &["--verbose=1", "--verbose=2"],
    ] {
        let (same, warnings) = options(arguments);
        assert_eq!(same, plain, "{arguments:?}");
        let text =
            "--verbose has no effect: all messages are logged. Release 0.3.0 refuses verbose";
        assert_eq!(warnings, [text], "{arguments:?}");
    }
    let (_, warnings) = options(&["--threads", "4"]);
    assert_eq!(warnings.len(), 1, "a shared retired option: {warnings:?}");
}

#[test]
fn values_of_retired_options_become_pairs() {
    let limits = |arguments: &[&str]| options(arguments).0.limits.to_string();
    assert_eq!(limits(&["--calls-max", "7"]), "calls=7");
    assert_eq!(limits(&["--calls-max=7", "--work-name=x"]), "calls=7,name=x");
    assert_eq!(limits(&["--calls-max=7", "--limits", "name=x"]), "calls=7,name=x");
    assert_eq!(limits(&["--limits=calls=8", "--calls-max=7"]), "calls=8", "the new option wins");
    assert_eq!(limits(&["--limits=calls=7", "--limits=name=x,calls=8"]), "calls=8,name=x");
    let (_, warnings) = options(&["--calls-max=7", "--work-name=x"]);
    let text = "--calls-max is replaced by --limits calls=VALUE. Release 0.3.0 refuses calls-max";
    assert_eq!(warnings[0], text);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn a_renamed_option_is_accepted_under_its_former_name() {
    let (given, warnings) = options(&["--seed-file", "a", "--read=x", "--read", "y,z"]);
    assert_eq!(
        (given.key_file, given.input),
        (Some("a".into()), options(&["--input=x,y,z"]).0.input)
    );
    let text = "--seed-file is replaced by --key-file. Release 0.3.0 refuses seed-file";
    assert_eq!(warnings[0], text);
    let twice = refused(&["--seed-file=a", "--key-file=b"]);
    assert_eq!(twice, "key-file: is set twice: leave out --seed-file, the former name");
}

#[test]
fn retired_options_are_accepted_in_a_file() {
    let file = file("calls-max = 7\nread = [\"x\", \"y\"]\nverbose = true\nlisten = \"c:3\"\n");
    let from_file = ["--config", path(&file)];
    let (given, warnings) = options(&from_file);
    assert_eq!((given.limits.to_string().as_str(), given.listen.as_str()), ("calls=7", "c:3"));
    assert_eq!(given.input, ["x", "y"]);
    let origin = format!("calls-max in {} is replaced by --limits", path(&file));
    assert!(warnings.iter().any(|text| text.starts_with(&origin)), "{warnings:?}");
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    // A flag overrides the file, under either name.
    let flags = [&from_file[..], &["--calls-max=8"]].concat();
    assert_eq!(options(&flags).0.limits.to_string(), "calls=8");
    assert_eq!(options(&flags).1.len(), 3, "one warning for each option");
    let flags = [&from_file[..], &["--limits=calls=9"]].concat();
    assert_eq!(options(&flags).0.limits.to_string(), "calls=9");
}

#[test]
fn pairs_of_a_file_stay_beside_a_retired_flag() {
    let file = file("limits = \"name=x\"\n");
    let (given, _) = options(&["--config", path(&file), "--calls-max=8"]);
    assert_eq!(given.limits.to_string(), "calls=8,name=x");
}

/// The same small program with variables that cargo sets: `CARGO_PKG_NAME` and `CARGO_MANIFEST_DIR`.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
struct ByVariable {
    /// Limits of work
    #[arg(long, value_name = PAIRS, default_value_t)]
    limits: KeyValues<Limits>,
}

impl Options for ByVariable {
    const PROGRAM: &'static str = "small";
    const ABOUT: &'static str = "A small program";
    const EXAMPLE: &'static str = "";
    const VARIABLE_PREFIX: &'static str = "CARGO_";
    const SHORT_HELP: &'static [&'static str] = &[];
    const RETIRED: &'static [&'static [Retired]] = &[&[
        Retired::key("pkg-name", "limits", "name"),
        Retired::ignored("manifest-dir", "the folder is fixed"),
    ]];
}

#[test]
fn retired_options_are_accepted_as_variables() {
    let read = read::<ByVariable, _>(["small".into()], |options| Ok(options.limits.to_string()));
    let Ok(Action::Run(limits, warnings)) = read else { panic!("{read:?}") };
    assert_eq!(*limits, "name=kvasir-process");
    assert!(warnings[0].starts_with("the environment variable CARGO_PKG_NAME is replaced by"));
    assert!(warnings[1].starts_with("the environment variable CARGO_MANIFEST_DIR has no effect"));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn a_refused_value_of_a_retired_option_names_both_options() {
    let why = "limits: \"calls=x\": calls: \"x\": invalid digit found in string (from calls-max)";
    assert_eq!(refused(&["--calls-max=x"]), why);
    let file = file("calls-max = \"x\"\n");
    assert_eq!(refused(&["--config", path(&file)]), why);
}

#[test]
fn retired_options_are_not_shown() {
    let shown = printed(&["--help"]) + &printed(&["-h"]) + &options_table::<Small>();
    for retired in retired::<Small>() {
        assert!(!shown.contains(&format!("--{}", retired.name())), "{shown}");
    }
    let config = printed(&["--print-config", "--calls-max=7", "--verbose"]);
    let start = "# --verbose has no effect: ";
    assert!(config.starts_with(start), "{config}");
    assert!(config.contains("\nlimits = \"calls=7\"\n"), "{config}");
    assert!(!config.contains("calls-max ="), "{config}");
    let migrated = file(&config);
    let (read, warnings) = options(&["--config", path(&migrated)]);
    assert_eq!((read.limits.to_string(), warnings), ("calls=7".to_owned(), Vec::new()));
}

#[test]
fn short_help_has_the_options_that_matter() {
    let help = printed(&["-h"]);
    assert!(help.contains("Address of the port [default: a:1]\n"), "{help}");
    assert!(help.contains("--config <FILE>") && !help.contains("--limits"), "{help}");
    assert!(!help.contains("[env:"), "{help}");
    assert!(help.trim_end().ends_with("--help shows all options."), "{help}");
}

#[test]
fn long_help_has_all_options_under_headings() {
    let help = printed(&["--help"]);
    let parts: Vec<_> = help.split("\nWork:\n").collect();
    assert_eq!(parts.len(), 2, "{help}");
    assert!(parts[0].contains("\nPorts:\n      --listen <LISTEN>\n"), "{help}");
    for option in ["--limits", "--key-file", "--input"] {
        assert!(parts[1].contains(option), "{option}: {help}");
    }
    assert!(parts[1].ends_with("Example:\n  small --listen b:2\n"), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}

/// In that release, the retired options are deleted, and new ones name the release after it.
#[test]
fn the_release_that_refuses_retired_options_is_to_come() {
    assert!(!VERSION.starts_with(retired::REFUSED_FROM), "delete the retired options");
}
