//! How often comments and pages spell relations out with *of*, in place of a compound noun ("the generation settings").
//!
//! The test prints both counts, and fails above a bound. It cannot judge style: a low count can be bad English too.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use crate::crate_boundaries::sources;

/// The highest number of *of* per 1,000 words.
const MAX_IN_COMMENTS: f64 = 30.0;
const MAX_IN_PAGES: f64 = 25.0;

const CODE: [&str; 11] = [
    "benches",
    "bindings",
    "cli",
    "compiler",
    "engine",
    "functions",
    "node",
    "python",
    "src",
    "tests",
    "wasm",
];

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    words: usize,
    relations: usize,
}

impl Count {
    fn of(text: &str) -> Self {
        let words = text.split(|part: char| !part.is_alphabetic() && part != '\'' && part != '-');
        words.filter(|word| !word.is_empty()).fold(
            Self::default(),
            |Self { words, relations }, word| Self {
                words: words + 1,
                relations: relations + usize::from(word.eq_ignore_ascii_case("of")),
            },
        )
    }

    fn per_thousand(self) -> f64 {
        1000.0 * self.relations as f64 / self.words.max(1) as f64
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self {
            words: sum.words + count.words,
            relations: sum.relations + count.relations,
        })
    }
}

/// Comments on separate lines, without trailing ones.
fn comments(code: &str) -> String {
    let comment = |line: &str| Some(line.trim_start().strip_prefix("//")?.to_owned() + "\n");
    code.lines().filter_map(comment).collect()
}

/// A page without its code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

#[test]
fn relations_are_mostly_compound_nouns() {
    let root = Path::new(crate::ROOT);
    let count = |folder: &str, extension: &str, part: fn(&str) -> String| -> Count {
        let files = sources(&root.join(folder), extension);
        files
            .iter()
            .map(|path| Count::of(&part(&fs::read_to_string(path).unwrap())))
            .sum()
    };
    let code: Vec<(&str, Count)> = CODE
        .map(|folder| (folder, count(folder, "rs", comments)))
        .to_vec();
    let read = |name: &str| Count::of(&prose(&fs::read_to_string(root.join(name)).unwrap()));
    let pages = [
        count("docs", "md", prose),
        read("README.md"),
        read("CONTRIBUTING.md"),
    ]
    .into_iter()
    .sum();
    let all = code.iter().map(|(_, count)| *count).sum();
    let table: String = code
        .into_iter()
        .chain([("comments", all), ("pages", pages)])
        .map(|(name, count)| {
            format!(
                "{name:12}{:8} words, {:5.1} per 1,000 are `of`\n",
                count.words,
                count.per_thousand()
            )
        })
        .collect();
    // Not `print!`, whose output the test harness shows for failed tests only.
    let _ = io::stderr().write_all(table.as_bytes());
    assert!(
        all.words > 10_000 && pages.words > 10_000,
        "expected comments and pages, but found few:\n{table}"
    );
    assert!(
        all.per_thousand() <= MAX_IN_COMMENTS && pages.per_thousand() <= MAX_IN_PAGES,
        "expected at most {MAX_IN_COMMENTS} in comments and {MAX_IN_PAGES} in pages, but found:\n{table}"
    );
}
