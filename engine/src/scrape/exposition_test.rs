use super::samples;
use crate::scrape::ReadError;
use proptest::prelude::any;
use proptest::{prop_assert_eq, proptest};

/// The samples of metric `a`.
fn read(text: &str) -> Result<Vec<super::Sample<'_>>, ReadError> {
    let found = samples(text, |name| (name == "a").then_some(()));
    found.map(|sample| sample.map(|((), sample)| sample)).collect()
}

#[test]
fn lines_are_read_as_the_format_has_them() {
    let text = "# TYPE a gauge\na 1\n\nb{ nonsense\na_total 9\n  a{} 2.5 \na{x=\"1\"} 3e2 1700000000000\r\n\
        a { x = \"1,2}\" , y=\"\\\"\\\\\\n=é\", } +Inf\na{z=\"\"}\t-0";
    let samples = read(text).expect("all lines are good");
    let values: Vec<_> = samples.iter().map(|sample| (sample.line, sample.value)).collect();
    assert_eq!(values, [(2, 1.0), (6, 2.5), (7, 300.0), (8, f64::INFINITY), (9, -0.0)]);
    let labels = |at: usize, name| samples[at].label(name);
    assert_eq!((labels(0, "x"), labels(2, "x"), labels(2, "y")), (None, Some("1"), None));
    assert_eq!((labels(3, "x"), labels(3, "y")), (Some("1,2}"), Some("\"\\\n=é")));
    assert_eq!(labels(4, "z"), Some(""));
    assert!(read("a NaN").expect("a number")[0].value.is_nan());
    assert_eq!(read("").expect("nothing"), []);
}

#[test]
fn lines_that_are_not_as_they_should_be_say_why() {
    let labels = |count: usize| format!("a{{{}}} 1", "x=\"1\",".repeat(count));
    for (text, expected) in [
        ("a", "there is no value"),
        ("a{x=\"1\"}", "there is no value"),
        ("a one", "the value is not a number"),
        ("a 1 soon", "the time is not a number of milliseconds"),
        ("a 1 2 3", "there is more than a value and a time"),
        ("a{x} 1", "a label has no value"),
        ("a{x=1} 1", "a label's value has no quotes"),
        ("a{x=\"1} 1", "a label's value has no closing quote"),
        ("a{x=\"\\t\"} 1", "a label's value has an escape that is none"),
        ("a{x=\"\\", "a label's value has an escape that is none"),
        ("a{x=\"1\" y=\"2\"} 1", "labels are not separated by commas"),
        ("a{", "a label has no value"),
        (&labels(65), "there are more than 64 labels"),
    ] {
        let error = read(&format!("b 1\n{text}")).expect_err(text).to_string();
        assert_eq!(error, format!("line 2: {expected}"), "{text}");
    }
    read(&labels(64)).expect("so many may be");
}

proptest! {
    /// Any input is parsed or causes an error, never a panic.
    #[test]
    fn any_text_is_read_or_refused(text in "(a|b|\\{|\\}|=|\"|\\\\|,|1|é| |\n|n)*") {
        drop(read(&text));
    }

    #[test]
    fn what_is_written_is_read(labels in proptest::collection::vec(("[a-z_]{1,5}", ".*"), 0..5), value in any::<f64>()) {
        let escape = |text: &str| {
            text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
        };
        // The format has no other line ends, and no spaces around a line.
        let labels: Vec<(String, String)> =
            labels.into_iter().map(|(name, text)| (name, text.replace('\r', ""))).collect();
        let written: Vec<_> =
            labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escape(text))).collect();
        let text = format!("a{{{}}} {value}", written.join(","));
        let samples = read(&text).expect("it is well-formed");
        prop_assert_eq!(samples[0].value.to_bits(), value.to_bits());
        let read: Vec<_> = samples[0].labels.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        prop_assert_eq!(read, labels);
    }
}
