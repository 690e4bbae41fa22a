//! Names for text and answer columns.

use super::csv::dialect::DELIMITERS;
use kivu::{Error, Result, error::quoted};

/// Recognized text column names, best first.
const TEXT_COLUMNS: [&str; 12] = [
    "text", "inputs", "input", "sentence", "content", "document", "body", "review", "comment",
    "message", "title", "question",
];

/// A column's values, as far as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Nothing: nulls.
    Empty,
    Other,
    Texts,
}

/// Finds the text column: `requested`, or the best in `columns`.
///
/// A known name takes precedence over the type, since a column that begins with nulls may have texts later, and
/// another column may be an id. In its usual spelling it takes precedence over others, such as `Text`.
pub fn find_column(requested: Option<&str>, columns: &[(String, Content)]) -> Result<String> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let unique = |name: &str| match names.iter().filter(|other| **other == name).count() {
        1 => Ok(name.to_owned()),
        found => Err(Error::invalid(format!(
            "expected one text column, but found `{name}` {found} times"
        ))),
    };
    if let Some(requested) = requested {
        let found = names
            .iter()
            .find(|name| **name == requested)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "expected a column `{requested}`, but found {}",
                    quoted(&names)
                ))
            });
        return found.and_then(|name| unique(name));
    }
    let known = |accepts: fn(Content) -> bool| {
        TEXT_COLUMNS.iter().find_map(|known| {
            let named = columns
                .iter()
                .filter(|(name, content)| is_named(name, known) && accepts(*content));
            let named: Vec<&str> = named.map(|(name, _)| name.as_str()).collect();
            match named.iter().find(|name| **name == *known) {
                Some(usual) => Some(vec![*usual]),
                None => (!named.is_empty()).then_some(named),
            }
        })
    };
    let best = known(|content| content != Content::Other).or_else(|| known(|_| true));
    let texts: Vec<&str> = columns
        .iter()
        .filter(|(_, content)| *content == Content::Texts)
        .map(|(name, _)| name.as_str())
        .collect();
    let best = best.unwrap_or_default();
    match (best.as_slice(), texts.as_slice()) {
        ([name, others @ ..], _) if others.iter().all(|other| other == name) => unique(name),
        ([_, ..], _) => Err(Error::invalid(format!(
            "expected one text column, but found {}",
            quoted(&best)
        ))
        .with_hint("say which one with `column` (`--column`)")),
        ([], [name]) => Ok((*name).to_owned()),
        ([], []) => Err(Error::invalid(format!(
            "expected a text column, but found {}",
            quoted(&names)
        ))),
        ([], _) => Err(Error::invalid(format!(
            "expected a column called `text` or another that is known, but found {}",
            quoted(&texts)
        ))
        .with_hint("say which one with `column` (`--column`)")),
    }
}

/// The places of the columns `names` among a file's, `known`.
///
/// # Errors
/// The file does not have a column once.
pub fn places(known: &[&str], names: &[String]) -> Result<Vec<usize>> {
    let place = |name: &String| {
        let mut places = (0..known.len()).filter(|at| known[*at] == *name);
        match (places.next(), places.next()) {
            (Some(place), None) => Ok(place),
            (None, _) => Err(Error::invalid(format!(
                "no column `{name}`; the file has {}",
                quoted(known)
            ))),
            _ => Err(
                Error::invalid(format!("several columns are called `{name}`"))
                    .with_hint("rename the others"),
            ),
        }
    };
    names.iter().map(place).collect()
}

fn is_named(name: &str, known: &str) -> bool {
    name.trim().eq_ignore_ascii_case(known)
}

/// Whether this name is recognized as a text column.
pub fn is_known(name: &str) -> bool {
    TEXT_COLUMNS.iter().any(|known| is_named(name, known))
}

/// Whether a file begins with a CSV header that has a recognized text column, or with Excel's line before it.
pub fn has_known_column(start: &[u8]) -> bool {
    let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let line = start.split(is_line_end).next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let is_delimiter = |character: char| {
        DELIMITERS
            .iter()
            .any(|delimiter| character == char::from(*delimiter))
    };
    let mut fields = line
        .split(is_delimiter)
        .map(|field| field.trim().trim_matches('"'));
    fields.any(is_known)
        || line
            .trim_start_matches('"')
            .to_ascii_lowercase()
            .starts_with("sep=")
}

/// An answer column name that the file does not use: `label`, `kivu_label`, `kivu_label_2`, ….
pub fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("kivu_{name}_{number}"));
    let mut names = [name.to_owned(), format!("kivu_{name}")]
        .into_iter()
        .chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_are_not_confused() {
        let found = |names: &[&str]| {
            let of = |name: &&str| ((*name).to_owned(), Content::Texts);
            let columns: Vec<_> = names.iter().map(of).collect();
            find_column(None, &columns).map_err(|error| error.to_string())
        };
        assert_eq!(found(&["TEXT", "Text", "text"]).unwrap(), "text");
        assert_eq!(found(&["id", "Text"]).unwrap(), "Text");
        insta::assert_snapshot!(found(&["TEXT", "Text"]).unwrap_err(), @"expected one text column, but found `TEXT`, `Text`; say which one with `column` (`--column`)");
        insta::assert_snapshot!(found(&["Text", "Text"]).unwrap_err(), @"expected one text column, but found `Text` 2 times");
    }
}
