//! Reads explanations of missed targets from a file that people write.
//!
//! Each section `## id, id, …` has the text for the targets with these ids; `*` in an id represents any one word.

/// Texts by ids of targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Explanations(Vec<(Vec<String>, String)>);

impl Explanations {
    /// Parses a file's text.
    pub(crate) fn parse(text: &str) -> Self {
        let mut all: Vec<(Vec<String>, String)> = Vec::new();
        for line in text.lines() {
            if let Some(ids) = line.strip_prefix("## ") {
                let ids = ids.split(',').map(|id| id.trim().trim_matches('`').to_owned());
                all.push((ids.collect(), String::new()));
            } else if let Some((_, text)) = all.last_mut() {
                text.push_str(line);
                text.push('\n');
            }
        }
        let trimmed = all.into_iter().map(|(ids, text)| (ids, text.trim().to_owned()));
        Self(trimmed.collect())
    }

    /// The first text for a target.
    pub(crate) fn of(&self, bar: &str) -> Option<&str> {
        let found = self.0.iter().find(|(ids, _)| ids.iter().any(|id| stands_for(id, bar)));
        found.map(|(_, text)| text.as_str())
    }
}

fn stands_for(pattern: &str, id: &str) -> bool {
    let (pattern, id): (Vec<&str>, Vec<&str>) =
        (pattern.split('.').collect(), id.split('.').collect());
    pattern.len() == id.len() && pattern.iter().zip(&id).all(|(a, b)| *a == "*" || a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_section_that_names_a_bar_explains_it() {
        let text = "# Title\nintro\n\n## a.b, `a.*.c`\n\nfirst\n\nmore\n## a.b.c\nlast\n";
        let explanations = Explanations::parse(text);
        assert_eq!(explanations.of("a.b"), Some("first\n\nmore"));
        assert_eq!(explanations.of("a.x.c"), Some("first\n\nmore"));
        assert_eq!(explanations.of("a.b.c"), Some("first\n\nmore"));
        assert_eq!(explanations.of("a.x"), None);
        assert_eq!(explanations.of("a.b.c.d"), None);
    }
}
