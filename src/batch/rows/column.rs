//! Names of columns: that of the texts, and those of the answers.

use crate::error::{Error, Result, quoted};

/// The names of text columns that are recognized, best first.
const TEXT_COLUMNS: [&str; 12] = [
    "text", "inputs", "input", "sentence", "content", "document", "body", "review", "comment", "message",
    "title", "question",
];

/// The column of texts: `requested`, or the best of the columns `strings`, which have a suitable type.
pub(super) fn find_column(requested: Option<&str>, names: &[String], strings: &[String]) -> Result<String> {
    let unique = |name: &String| match names.iter().filter(|other| *other == name).count() {
        1 => Ok(name.clone()),
        found => {
            Err(Error::invalid(format!("expected one column of texts, but found `{name}` {found} times")))
        }
    };
    if let Some(requested) = requested {
        let found = names.iter().find(|name| *name == requested).ok_or_else(|| {
            Error::invalid(format!("expected a column `{requested}`, but found {}", quoted(names)))
        });
        return found.and_then(unique);
    }
    let known = TEXT_COLUMNS
        .iter()
        .find_map(|known| strings.iter().find(|name| name.trim().eq_ignore_ascii_case(known)));
    match (known, strings) {
        (Some(name), _) => unique(name),
        (None, [name]) => Ok(name.clone()),
        (None, []) => Err(Error::invalid(format!("expected a column of texts, but found {}", quoted(names)))),
        (None, _) => Err(Error::invalid(format!(
            "expected a column called `text` or another that is known, but found {}; say which one with `column`",
            quoted(strings)
        ))),
    }
}

/// Whether a column of that name is recognized as the column of texts.
pub(super) fn is_known(name: &str) -> bool {
    TEXT_COLUMNS.iter().any(|known| name.trim().eq_ignore_ascii_case(known))
}

/// A name for a column of answers that the file does not use: `label`, `kivu_label`, `kivu_label_2`, ….
pub(super) fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("kivu_{name}_{number}"));
    let mut names = [name.to_owned(), format!("kivu_{name}")].into_iter().chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or_default()
}
