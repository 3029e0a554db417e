//! The report as one HTML page, plots included.

use crate::report::Piece;
use bench_figures::Table;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}\
    td,th{border:1px solid #ccc;padding:2px 8px;text-align:left;white-space:nowrap}\
    .missed{background:#fbe3df}.absent{color:#888}svg{max-width:100%;height:auto}";

/// A page.
pub(crate) fn page(title: &str, pieces: &[Piece]) -> String {
    let body: String = pieces.iter().map(piece).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n{body}</html>\n",
        escape(title)
    )
}

fn piece(piece: &Piece) -> String {
    match piece {
        Piece::Heading(level, text) => format!("<h{level}>{}</h{level}>\n", escape(text)),
        Piece::Text(text) => format!("<p>{}</p>\n", emphasis(text)),
        Piece::Table(table) => rows(table),
        Piece::Plot(title, _, svg) => {
            format!("<figure aria-label=\"{}\">{svg}</figure>\n", escape(title))
        }
    }
}

fn rows(table: &Table) -> String {
    let cells = |tag: &str, row: &[String]| -> String {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", emphasis(cell))).collect()
    };
    let row = |row: &Vec<String>| {
        let class = match row {
            row if row.iter().any(|cell| cell == "**missed**") => " class=\"missed\"",
            row if row.iter().any(|cell| cell == "not measured") => " class=\"absent\"",
            _ => "",
        };
        format!("<tr{class}>{}</tr>\n", cells("td", row))
    };
    let body: String = table.rows().iter().map(row).collect();
    format!("<table>\n<tr>{}</tr>\n{body}</table>\n", cells("th", table.heads()))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escaped, with the Markdown that texts here use: strong words and code.
fn emphasis(text: &str) -> String {
    let strong = pairs(&escape(text), "**", "strong");
    pairs(&strong, "`", "code")
}

/// Every other piece between marks in a tag; a mark that is alone stays.
fn pairs(text: &str, mark: &str, tag: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(mark)
        && let Some((inside, behind)) = after.split_once(mark)
    {
        out += &format!("{before}<{tag}>{inside}</{tag}>");
        rest = behind;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_marked() {
        for (text, page) in [
            ("a < b & c", "a &lt; b &amp; c"),
            ("**missed** `a`", "<strong>missed</strong> <code>a</code>"),
            ("`a` and ` alone", "<code>a</code> and ` alone"),
        ] {
            assert_eq!(emphasis(text), page);
        }
    }
}
