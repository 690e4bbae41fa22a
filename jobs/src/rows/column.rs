//! Names for text and answer columns.

use kivu::error::{Error, Result, quoted};

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
/// another column may be an id.
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
        let mut known = TEXT_COLUMNS
            .iter()
            .flat_map(|known| columns.iter().map(move |column| (known, column)));
        let found =
            known.find(|(known, (name, content))| is_named(name, known) && accepts(*content));
        found.map(|(_, (name, _))| name.as_str())
    };
    let best = known(|content| content != Content::Other).or_else(|| known(|_| true));
    let texts: Vec<&str> = columns
        .iter()
        .filter(|(_, content)| *content == Content::Texts)
        .map(|(name, _)| name.as_str())
        .collect();
    match (best, texts.as_slice()) {
        (Some(name), _) => unique(name),
        (None, [name]) => Ok((*name).to_owned()),
        (None, []) => Err(Error::invalid(format!(
            "expected a text column, but found {}",
            quoted(&names)
        ))),
        (None, _) => Err(Error::invalid(format!(
            "expected a column called `text` or another that is known, but found {}",
            quoted(&texts)
        ))
        .with_hint("say which one with `column` (`--column`)")),
    }
}

fn is_named(name: &str, known: &str) -> bool {
    name.trim().eq_ignore_ascii_case(known)
}

/// Whether this name is recognized as a text column.
pub fn is_known(name: &str) -> bool {
    TEXT_COLUMNS.iter().any(|known| is_named(name, known))
}

/// An answer column name that the file does not use: `label`, `kivu_label`, `kivu_label_2`, ….
pub fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("kivu_{name}_{number}"));
    let mut names = [name.to_owned(), format!("kivu_{name}")]
        .into_iter()
        .chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or_default()
}
