//! Documentation, comments, messages and names are plain technical English.
//!
//! The test refuses phrases that once stood in for a standard term, or that describe programs as people. It cannot
//! judge style; it keeps these phrases from coming back.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::crate_boundaries::sources;

const FOLDERS: [&str; 12] = [
    "benches",
    "cli",
    "compiler",
    "deploy",
    "docs",
    "engine",
    "examples",
    "functions",
    "fuzz",
    "models",
    "src",
    "tests",
];
const EXTENSIONS: [&str; 9] = ["css", "html", "js", "md", "py", "rs", "sh", "toml", "yaml"];
const FILES: [&str; 12] = [
    ".ci/run",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "Makefile",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "functions/Makefile",
    "samconfig.toml",
    "src/api/openapi/openapi.json",
    "template.yaml",
];

/// Phrases in lower case, with `_` as a space, and what to write instead.
const PHRASES: &[(&[&str], &str)] = &[
    (&["whence"], "from which"),
    (&["whoever", "whomever", "whom"], "the noun: a client, the process that"),
    (&["everybody", "nobody", "somebody", "anybody"], "the noun: all clients, no process, another worker"),
    (&["he", "him", "his"], "they, or the noun: the client's"),
    (&["told", "tells", "tells of"], "reports, returns, names, prints, distinguishes"),
    (&["knows", "wants", "likes", "hears"], "has, needs, expects, prefers"),
    (&["goes by", "go by"], "is called, is identified by, follows"),
    (&["let be", "of its own accord"], "unchanged, automatically"),
    (&["beside"], "next to, in addition to, compared with"),
    (&["lies", "lie"], "is, is stored"),
    (&["stands", "stand"], "is, is stored, represents"),
    (
        &["as it comes", "as they come", "as it came", "as they came"],
        "unchanged, in input order, dynamically",
    ),
    (&["in whatever", "company"], "whatever else is in the batch"),
    (&["for those who", "for want of"], "where this matters; for lack of"),
    (&["what is there", "is there for", "are there for"], "the noun: existing objects"),
    (&["is meant", "are meant", "be meant"], "is used, refers to"),
    (&["never were", "counts for", "count for", "be had"], "is not in the cache, is ignored, is available"),
    (&["looked at", "looks at"], "checks, inspects, reads"),
    (&["say nothing", "says nothing"], "is empty, sends no bytes"),
    (&["makes no sense"], "is invalid"),
    (&["finds out", "find out"], "detects, determines"),
    (&["is no", "are no", "was no"], "is not a"),
    (&["door", "doors"], "boundary, entry point, trusted proxy"),
    (&["patience"], "timeout"),
    (&["is asked", "are asked", "was asked", "were asked"], "is requested, is queried, is called"),
    (&["goes on", "go on", "went on"], "continues, resumes"),
    (&["comes of", "came of", "becomes of", "became of"], "the noun: the result, the outcome"),
    (&["so many"], "the number, at most this many"),
    (&["speaks", "spoken to"], "implements, supports, uses"),
    (&["anew", "afresh", "lately", "for ever", "at hand"], "again, recently, indefinitely, available"),
    (
        &["at its word", "on its word", "refused in words", "content with", "behind each other"],
        "say what is done",
    ),
    (&["turned away", "turns away", "looked for"], "rejected; searched, expected"),
    (
        &["texts a second", "tokens a second", "rows a second", "requests a second", "times a second"],
        "texts per second, texts/s",
    ),
    (
        &[
            "row a run",
            "text a run",
            "text a batch",
            "row a batch",
            "one a thread",
            "thread a cpu",
            "texts a request",
        ],
        "one row per run",
    ),
];

/// Phrases that contain one of the above and are fine.
const FINE: &[&str] =
    &["there is no", "there are no", "there was no", "is no longer", "are no longer", "told apart"];

/// Beginnings of names, and what to write instead.
const PREFIXES: &[(&str, &str)] = &[("MOST_", "MAX_"), ("LONGEST_", "MAX_")];

/// Lines that contain a phrase and are right, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "\"matrices: int8, one scale an output channel, activations quantized as they come; \\",
        "part of manifests, whose digests must not change",
    ),
    ("(\"\\\"Stop!\\\" he said. Then?\", \"[\\\"Stop!\\\" he said.] [Then?]\"),", "an example of a text"),
    ("(\"The cat sits on the mat.\", \"Nobody is on the mat.\"),", "an example of a text"),
    (
        "\"tr_TR\", \"vi_VN\", \"zh_CN\", \"af_ZA\", \"az_AZ\", \"bn_IN\", \"fa_IR\", \"he_IL\", \"hr_HR\", \"id_ID\", \"ka_GE\",",
        "codes of languages",
    ),
    ("assert all(len(golden[pair]) == COUNT for pair in (\"en-pt\", \"pt-en\"))", "a loop"),
    (
        "SEED, MAX_LENGTH, BATCH, EPOCHS, PATIENCE, RANK, RATE = 17, 128, 32, 5, 2, 8, 1e-3",
        "patience is the standard term for early stopping",
    ),
    ("elif (stale := stale + 1) >= PATIENCE:", "patience is the standard term for early stopping"),
];

/// A line that should be written otherwise.
struct Finding {
    place: String,
    line: String,
    phrase: String,
    instead: &'static str,
}

fn texts(root: &Path) -> Vec<PathBuf> {
    let folders =
        FOLDERS.iter().flat_map(|folder| EXTENSIONS.iter().map(move |extension| (folder, extension)));
    let files = folders.flat_map(|(folder, extension)| sources(&root.join(folder), extension));
    let is_ours = |path: &PathBuf| {
        !path.ends_with("integration/language.rs") && !path.starts_with(root.join("fuzz/target"))
    };
    files.filter(is_ours).chain(FILES.iter().map(|name| root.join(name))).collect()
}

/// Whether the words of `phrase` are words of `text`.
fn contains(text: &str, phrase: &str) -> bool {
    let is_end = |next: Option<char>| next.is_none_or(|next| !next.is_alphanumeric());
    text.match_indices(phrase).any(|(at, _)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + phrase.len()..].chars().next())
    })
}

/// Whether a sentence of `line` begins with a noun clause, as in "What answers are its vectors."
fn has_headless_sentence(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '/', '!', '#', '*', '-', '|', '"', '`', '<', '>']);
    ["What ", "Who ", "Whose "].iter().any(|word| {
        let starts = line.match_indices(word).filter(|(at, _)| {
            *at == 0 || line[..*at].ends_with(['.', '|', '"', ':']) || line[..*at].ends_with(". ")
        });
        starts
            .map(|(at, _)| &line[at..])
            .any(|sentence| !sentence[..sentence.find(['.', '"']).unwrap_or(sentence.len())].contains('?'))
    })
}

fn read(path: &Path, name: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let plain =
            FINE.iter().fold(line.to_lowercase().replace('_', " "), |plain, fine| plain.replace(fine, ""));
        let phrases = PHRASES
            .iter()
            .flat_map(|(phrases, instead)| phrases.iter().map(move |phrase| (*phrase, *instead)));
        let mut found: Vec<_> = phrases.filter(|(phrase, _)| contains(&plain, phrase)).collect();
        let words = || line.split(|part: char| !part.is_alphanumeric() && part != '_');
        found.extend(PREFIXES.iter().filter(|(prefix, _)| words().any(|word| word.starts_with(prefix))));
        if has_headless_sentence(line) {
            found.push(("What …", "the noun: Fields of a request, Errors that …"));
        }
        findings.extend(found.into_iter().map(|(phrase, instead)| Finding {
            place: format!("{name}:{}", at + 1),
            line: line.trim().to_owned(),
            phrase: phrase.to_owned(),
            instead,
        }));
    }
    findings
}

#[test]
fn texts_are_plain_technical_english() {
    let root = Path::new(crate::ROOT);
    let mut findings = Vec::new();
    for path in texts(root) {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        findings.extend(read(&path, &name));
    }
    let excused: BTreeSet<&str> = EXCEPTIONS.iter().map(|(line, _)| *line).collect();
    let unused: Vec<_> =
        excused.iter().filter(|line| findings.iter().all(|found| found.line != **line)).collect();
    assert!(unused.is_empty(), "exceptions for lines that do not exist: {unused:#?}");
    let list: Vec<_> = findings
        .iter()
        .filter(|found| !excused.contains(found.line.as_str()))
        .map(|found| {
            format!("{}: `{}`; write: {}\n    {}", found.place, found.phrase, found.instead, found.line)
        })
        .collect();
    assert!(list.is_empty(), "{} phrases to replace:\n{}", list.len(), list.join("\n"));
}
