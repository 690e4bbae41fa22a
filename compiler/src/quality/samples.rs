//! Texts and pairs that a user measures quality with, from files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;

use super::SENTENCES;
use kivu::{
    Error, Result,
    error::{Message, quoted},
    pipeline::{
        Task,
        classification::zero_shot::{Labels, Template, ZeroShotOptions},
    },
};
use kivu_jobs::{ColumnFile, Parquet};

/// Minimum number of texts: recall@10 of fewer would be nearly certain.
const MIN_TEXTS: usize = 20;
/// Maximum number of texts, each of which is compared with all others.
const MAX_TEXTS: usize = 5_000;
/// Minimum number of pairs.
const MIN_PAIRS: usize = 10;
/// Maximum number of pairs.
const MAX_PAIRS: usize = 50_000;
/// Maximum number of labels that a zero-shot model chooses among, each of which may cost a run per text.
const MAX_LABELS: usize = 200;

/// Names for columns with texts, most likely first.
const TEXT: [&str; 3] = ["text", "source", "sentence"];
/// Names for the columns with two texts of a kind.
const PAIRS: [[&str; 2]; 4] = [
    ["text1", "text2"],
    ["sentence1", "sentence2"],
    ["premise", "hypothesis"],
    ["question1", "question2"],
];
const QUESTION: [&str; 2] = ["question", "query"];
const PASSAGE: [&str; 3] = ["passage", "answer", "document"];
const SCORE: [&str; 1] = ["score"];
const LABEL: [&str; 2] = ["label", "is_duplicate"];
const REFERENCE: [&str; 2] = ["reference", "target"];

/// Column names of files with pairs, for errors.
const EXPECTED: &str = "`text1`, `text2` (or `sentence1`, `sentence2`; `premise`, `hypothesis`; `question1`, \
                        `question2`) with `score` or `label`, `question` with `passage`, `text` with `label`, or \
                        `text` with `reference`";

/// A user's texts and pairs.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Texts for the quality gate and for the ranges of int8 vectors, in place of the built-in ones.
    pub texts: Option<Texts>,
    /// Pairs that a model is measured on, beside the form that it is compared with.
    pub pairs: Option<Pairs>,
}

impl Samples {
    /// Reads both files.
    pub fn open(
        texts: Option<&Path>,
        pairs: Option<&Path>,
        columns: &ColumnNames,
        parquet: Parquet,
    ) -> Result<Self> {
        Ok(Self {
            texts: texts
                .map(|path| Texts::open(path, columns, parquet))
                .transpose()?,
            pairs: pairs
                .map(|path| Pairs::open(path, columns, parquet))
                .transpose()?,
        })
    }
}

/// The user's column names, by the names that [`Samples`] expects.
#[derive(Clone, Debug, Default)]
pub struct ColumnNames(BTreeMap<String, String>);

impl ColumnNames {
    /// Names from `EXPECTED=COLUMN`.
    ///
    /// # Errors
    /// Such a column is not expected.
    pub fn new(pairs: Vec<(String, String)>) -> Result<Self> {
        let others = [&TEXT[..], &QUESTION, &PASSAGE, &SCORE, &LABEL, &REFERENCE];
        let known = [PAIRS.as_flattened(), &others.concat()].concat();
        match pairs
            .iter()
            .find(|(name, _)| !known.contains(&name.as_str()))
        {
            Some((unknown, _)) => Err(Error::config(format!(
                "unknown column `{unknown}`; known columns: {}",
                quoted(&known)
            ))),
            None => Ok(Self(pairs.into_iter().collect())),
        }
    }

    /// Refuses names of columns that a file does not have.
    fn require(&self, path: &Path, file: &ColumnFile) -> Result<()> {
        match self
            .0
            .values()
            .find(|column| !file.names().contains(column))
        {
            Some(missing) => Err(Error::config(format!(
                "no column `{missing}` in `{}`; the file has {}",
                path.display(),
                quoted(file.names())
            ))),
            None => Ok(()),
        }
    }

    /// The column for the first of these names that was given or that the file has.
    fn column(&self, file: &ColumnFile, names: &[&str]) -> Option<String> {
        let given = names.iter().find_map(|name| self.0.get(*name)).cloned();
        given.or_else(|| named(file, names))
    }
}

/// Texts to compare two forms of a model with.
#[derive(Clone, Debug)]
pub struct Texts {
    /// At least one.
    pub texts: Vec<String>,
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            texts: SENTENCES.lines().map(str::to_owned).collect(),
        }
    }
}

impl Texts {
    /// Reads a file with a text per line (`.txt`), or with a column of texts.
    ///
    /// # Errors
    /// There are too few or too many texts, or an empty one.
    pub fn open(path: &Path, columns: &ColumnNames, parquet: Parquet) -> Result<Self> {
        let file = ColumnFile::open(path, parquet)?;
        columns.require(path, &file)?;
        let column = match columns.column(&file, &TEXT) {
            Some(column) => column,
            None => text_column(path, &file)?,
        };
        let texts = Rows::read(&file, path, &[&column], MAX_TEXTS)?.texts(0)?;
        Self::new(texts, path)
    }

    /// Texts that were read from `path`.
    pub fn new(texts: Vec<String>, path: &Path) -> Result<Self> {
        if let Some(row) = texts.iter().position(|text| text.trim().is_empty()) {
            return Err(Error::config(format!(
                "expected texts in `{}`, but found an empty one in row {}",
                path.display(),
                row + 1
            ))
            .with_hint("remove it"));
        }
        // Copies are each other's nearest neighbours, whatever the model.
        let distinct = texts.iter().collect::<BTreeSet<_>>().len();
        if distinct < MIN_TEXTS || texts.len() > MAX_TEXTS {
            return Err(Error::config(format!(
                "expected {MIN_TEXTS} to {MAX_TEXTS} texts in `{}`, {MIN_TEXTS} of them different, but found {}, {distinct} of \
                 them different",
                path.display(),
                texts.len()
            )));
        }
        Ok(Self { texts })
    }

    /// The texts, in order.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }

    /// Number of texts, at least one.
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}

/// The column with texts in a file.
pub fn text_column(path: &Path, file: &ColumnFile) -> Result<String> {
    match (named(file, &TEXT), file.names()) {
        (Some(name), _) => Ok(name),
        (None, [only]) => Ok(only.clone()),
        (None, names) => Err(Error::config(format!(
            "expected a column `text` in `{}`, but found {}",
            path.display(),
            quoted(names)
        ))
        .with_hint("rename the column with the texts")),
    }
}

/// Pairs of texts with what is expected of them, or texts with what is expected of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Pairs {
    /// Pairs with similarities, such as people's judgements.
    Scores(Vec<[String; 2]>, Vec<f64>),
    /// Pairs with labels, such as `entailment` or whether they are duplicates.
    Labels(Vec<[String; 2]>, Vec<String>),
    /// Questions, each with the passage that answers it.
    Passages(Vec<[String; 2]>),
    /// Texts with labels.
    LabelledTexts(LabelledTexts),
    /// Texts with the texts that a model should generate for them.
    References(Vec<[String; 2]>),
}

impl Pairs {
    /// Reads a file, whose columns determine its kind.
    ///
    /// # Errors
    /// The columns are unknown; a text or an expected value is missing; or there are too few pairs to tell anything.
    pub fn open(path: &Path, columns: &ColumnNames, parquet: Parquet) -> Result<Self> {
        let file = ColumnFile::open(path, parquet)?;
        columns.require(path, &file)?;
        let shown = path.display();
        let columns = Columns::of(&file, columns).map_err(|found| {
            Error::config(found.map(|found| {
                format!("expected columns {EXPECTED} in `{shown}`, but found {found}")
            }))
        })?;
        let names: Vec<&str> = columns.names.iter().map(String::as_str).collect();
        let rows = Rows::read(&file, path, &names, MAX_PAIRS)?;
        if rows.rows.len() < MIN_PAIRS {
            return Err(Error::config(format!(
                "expected at least {MIN_PAIRS} rows in `{shown}`, but found {}",
                rows.rows.len()
            )));
        }
        let pairs = || {
            let pairs = rows.texts(0)?.into_iter().zip(rows.texts(1)?);
            Ok::<_, Error>(
                pairs
                    .map(|(first, second)| [first, second])
                    .collect::<Vec<_>>(),
            )
        };
        match columns.kind {
            Kind::Scores => {
                let pairs = pairs()?;
                let scores = rows.scores(2)?;
                if scores.iter().all(|score| *score == scores[0]) {
                    return Err(Error::config(format!(
                        "expected different scores in `{shown}`, but found {} in all rows",
                        scores[0]
                    ))
                    .with_hint("ranks need differences"));
                }
                Ok(Self::Scores(pairs, scores))
            }
            Kind::Labels => Ok(Self::Labels(pairs()?, rows.labels(2)?)),
            Kind::LabelledTexts => Ok(Self::LabelledTexts(LabelledTexts {
                texts: rows.texts(0)?,
                labels: rows.labels(1)?,
                asked: None,
            })),
            Kind::References => Ok(Self::References(pairs()?)),
            Kind::Passages => {
                let pairs = pairs()?;
                let distinct = pairs
                    .iter()
                    .map(|[_, passage]| passage)
                    .collect::<BTreeSet<_>>()
                    .len();
                if distinct < MIN_TEXTS {
                    return Err(Error::config(format!(
                        "expected at least {MIN_TEXTS} different passages in `{shown}`, of which ten are found for each \
                         question, but found {distinct}"
                    )));
                }
                Ok(Self::Passages(pairs))
            }
        }
    }

    /// Pairs for a task: texts with labels ask a zero-shot model for `candidates`, or else for the file's labels.
    ///
    /// # Errors
    /// There are too many labels, or candidates for a model or a file that have no use for them.
    pub fn for_task(mut self, task: Task, candidates: Candidates) -> Result<Self> {
        let unused = |reason: String| {
            let options = "`--label` and `--template` are for";
            Err(Error::config(format!("{options} {reason}")))
        };
        match &mut self {
            Self::LabelledTexts(rows) if task == Task::ZeroShotClassification => {
                rows.asked = Some(candidates.asked(&rows.labels)?);
            }
            _ if candidates == Candidates::default() => {}
            Self::LabelledTexts(_) => {
                return unused(format!("zero-shot classifiers: the model is for `{task}`"));
            }
            other => {
                let found = other.description();
                return unused(format!("texts with labels: the file has {found}"));
            }
        }
        Ok(self)
    }

    /// Number of pairs.
    pub fn count(&self) -> usize {
        match self {
            Self::Scores(pairs, _)
            | Self::Labels(pairs, _)
            | Self::Passages(pairs)
            | Self::References(pairs) => pairs.len(),
            Self::LabelledTexts(rows) => rows.texts.len(),
        }
    }

    /// The kind of pairs in words, for reports and errors.
    pub fn description(&self) -> &'static str {
        match self {
            Self::Scores(..) => "pairs with scores",
            Self::Labels(..) => "pairs with labels",
            Self::Passages(_) => "questions with passages",
            Self::LabelledTexts(..) => "texts with labels",
            Self::References(_) => "texts with references",
        }
    }
}

/// Texts, each with the label that a model should give it.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledTexts {
    /// The texts.
    pub texts: Vec<String>,
    /// The expected label of each text.
    pub labels: Vec<String>,
    /// What a zero-shot model is asked; `None` for models with labels of their own.
    pub asked: Option<ZeroShotOptions>,
}

/// What a zero-shot model chooses among, as a user gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// The labels; by default the file's, by their first rows.
    pub labels: Vec<String>,
    /// The sentence around a label; by default the task's.
    pub template: Option<String>,
}

impl Candidates {
    /// The request for texts with these labels, which are compared regardless of case.
    fn asked(self, expected: &[String]) -> Result<ZeroShotOptions> {
        let given = match self.labels.is_empty() {
            true => expected.to_vec(),
            false => self.labels,
        };
        let mut known = BTreeSet::new();
        let distinct: Vec<String> = given
            .into_iter()
            .filter(|label| known.insert(label.to_ascii_lowercase()))
            .collect();
        if distinct.len() > MAX_LABELS {
            return Err(Error::config(format!(
                "expected at most {MAX_LABELS} different labels for a zero-shot model, but found {}",
                distinct.len()
            )));
        }
        if let Some(other) = expected
            .iter()
            .find(|label| !known.contains(&label.to_ascii_lowercase()))
        {
            return Err(Error::config(format!(
                "expected the file's labels among {}, but found `{other}`",
                quoted(&distinct)
            ))
            .with_hint("add it with `--label`"));
        }
        Ok(ZeroShotOptions {
            labels: Labels::new(distinct, MAX_LABELS)?,
            template: self.template.map(Template::new).transpose()?,
            prompt: None,
            multi_label: false,
            truncates: true,
        })
    }
}

enum Kind {
    Scores,
    Labels,
    Passages,
    LabelledTexts,
    References,
}

/// The columns that a kind of pairs needs.
struct Columns {
    kind: Kind,
    names: Vec<String>,
}

impl Columns {
    /// Finds the columns of exactly one kind. The error says what was found instead.
    fn of(file: &ColumnFile, columns: &ColumnNames) -> Result<Self, Message> {
        let one = |names: &[&str]| columns.column(file, names);
        let two = || {
            PAIRS
                .iter()
                .find_map(|[first, second]| Some(vec![one(&[*first])?, one(&[*second])?]))
        };
        let with = |texts: Option<Vec<String>>, other: &[&str]| {
            texts
                .zip(one(other))
                .map(|(texts, other)| [texts, vec![other]].concat())
        };
        let text = || one(&TEXT).map(|text| vec![text]);
        let question = || one(&QUESTION).map(|question| vec![question]);
        let found = [
            (Kind::Scores, with(two(), &SCORE)),
            (Kind::Labels, with(two(), &LABEL)),
            (Kind::Passages, with(question(), &PASSAGE)),
            (Kind::LabelledTexts, with(text(), &LABEL)),
            (Kind::References, with(text(), &REFERENCE)),
        ];
        let mut found = found.into_iter().filter_map(|(kind, names)| {
            Some(Self {
                kind,
                names: names?,
            })
        });
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            (Some(one), Some(other)) => Err(Message::new(format!(
                "both {} and {}",
                quoted(&one.names),
                quoted(&other.names)
            ))
            .with_hint("remove a column")),
            (None, _) => Err(Message::new(quoted(file.names()))
                .with_hint("rename the columns; `kivu quality --column` takes other names")),
        }
    }
}

/// The first of these names that a file has.
pub fn named(file: &ColumnFile, names: &[&str]) -> Option<String> {
    let known = |name: &&&str| file.names().iter().any(|found| found == **name);
    names.iter().find(known).map(|name| (*name).to_owned())
}

/// Rows of some of a file's columns.
pub struct Rows<'a> {
    path: &'a Path,
    names: &'a [&'a str],
    rows: Vec<Vec<Value>>,
}

impl<'a> Rows<'a> {
    /// Reads the columns with these names, in at most `max` rows.
    pub fn read(
        file: &ColumnFile,
        path: &'a Path,
        names: &'a [&'a str],
        max: usize,
    ) -> Result<Self> {
        let rows = file.rows(names, max)?;
        Ok(Self { path, names, rows })
    }

    /// The texts in the column at this place.
    pub fn texts(&self, place: usize) -> Result<Vec<String>> {
        self.values(place, "a text", |value| match value {
            Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
            _ => None,
        })
    }

    /// The numbers in a column, which CSV has as texts.
    fn scores(&self, place: usize) -> Result<Vec<f64>> {
        self.values(place, "a finite number", |value| {
            let score: f64 = match value {
                Value::Number(number) => number.as_f64()?,
                Value::String(text) => text.trim().parse().ok()?,
                _ => return None,
            };
            score.is_finite().then_some(score)
        })
    }

    /// The labels in a column, which are not all the same: texts, whole numbers or booleans.
    fn labels(&self, place: usize) -> Result<Vec<String>> {
        let labels = self.values(place, "a label", |value| match value {
            Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
            Value::Number(number) if !number.is_f64() => Some(number.to_string()),
            Value::Bool(is_so) => Some(is_so.to_string()),
            _ => None,
        })?;
        if labels.iter().all(|label| *label == labels[0]) {
            return Err(Error::config(format!(
                "expected different labels in `{}`, but found `{}` in all rows",
                self.path.display(),
                labels[0]
            )));
        }
        Ok(labels)
    }

    /// The values in a column. The error for one that is not what is expected does not show it, since it is a user's.
    fn values<T>(
        &self,
        place: usize,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>> {
        let value = |(row, values): (usize, &Vec<Value>)| {
            let found = &values[place];
            read(found).ok_or_else(|| {
                Error::config(format!(
                    "expected {expected} in `{}` of `{}`, but found {} in row {}",
                    self.names[place],
                    self.path.display(),
                    kind_of(found),
                    row + 1
                ))
            })
        };
        self.rows.iter().enumerate().map(value).collect()
    }
}

fn kind_of(unexpected: &Value) -> &'static str {
    match unexpected {
        Value::Null => "nothing",
        Value::String(text) if text.trim().is_empty() => "an empty text",
        Value::String(_) => "another text",
        Value::Number(_) => "another number",
        Value::Bool(_) => "a boolean",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, fs, path::PathBuf};

    use super::*;

    fn written(
        folder: &Path,
        name: &str,
        header: &str,
        row: impl Fn(usize) -> String,
        rows: usize,
    ) -> PathBuf {
        let mut text = format!("{header}\n");
        (0..rows).for_each(|number| writeln!(text, "{}", row(number)).unwrap());
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn columns_determine_what_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let pairs = |header: &str, row: &dyn Fn(usize) -> String| {
            let path = written(folder.path(), "pairs.csv", header, row, 24);
            Pairs::open(&path, &ColumnNames::default(), Parquet::default()).unwrap()
        };
        let kinds = [
            pairs("id,sentence1,sentence2,score", &|n| {
                format!("{n},a {n},b {n},{}", n % 5)
            }),
            pairs("premise,hypothesis,label", &|n| {
                format!("a {n},b {n},{}", ["yes", "no"][n % 2])
            }),
            pairs("question1,question2,is_duplicate", &|n| {
                format!("a {n},b {n},{}", n % 2)
            }),
            pairs("question,passage", &|n| format!("a {n},b {n}")),
            pairs("text,label", &|n| {
                format!("a {n},{}", ["good", "bad"][n % 2])
            }),
            pairs("text,reference", &|n| format!("a {n},b {n}")),
        ];
        let found: Vec<_> = kinds
            .iter()
            .map(|pairs| (pairs.description(), pairs.count()))
            .collect();
        assert_eq!(
            found,
            [
                ("pairs with scores", 24),
                ("pairs with labels", 24),
                ("pairs with labels", 24),
                ("questions with passages", 24),
                ("texts with labels", 24),
                ("texts with references", 24),
            ]
        );
        let Pairs::Scores(texts, scores) = &kinds[0] else {
            panic!("{:?}", kinds[0])
        };
        assert_eq!(
            (&texts[7], scores[7]),
            (&["a 7".to_owned(), "b 7".to_owned()], 2.0)
        );
    }

    #[test]
    fn unusable_pairs_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |header: &str, rows: usize, row: &dyn Fn(usize) -> String| {
            let path = written(folder.path(), "p.csv", header, row, rows);
            let error = Pairs::open(&path, &ColumnNames::default(), Parquet::default())
                .unwrap_err()
                .to_string();
            error.replace(&folder.path().display().to_string(), "[folder]")
        };
        insta::assert_snapshot!(refused("a,b", 20, &|n| format!("{n},{n}")), @"expected columns `text1`, `text2` (or `sentence1`, `sentence2`; `premise`, `hypothesis`; `question1`, `question2`) with `score` or `label`, `question` with `passage`, `text` with `label`, or `text` with `reference` in `[folder]/p.csv`, but found `a`, `b`; rename the columns; `kivu quality --column` takes other names");
        insta::assert_snapshot!(refused("text1,text2,score,label", 20, &|n| format!("a,b,{n},x")), @"expected columns `text1`, `text2` (or `sentence1`, `sentence2`; `premise`, `hypothesis`; `question1`, `question2`) with `score` or `label`, `question` with `passage`, `text` with `label`, or `text` with `reference` in `[folder]/p.csv`, but found both `text1`, `text2`, `score` and `text1`, `text2`, `label`; remove a column");
        insta::assert_snapshot!(refused("text1,text2,score", 9, &|n| format!("a,b,{n}")), @"expected at least 10 rows in `[folder]/p.csv`, but found 9");
        insta::assert_snapshot!(refused("text1,text2,score", 20, &|n| format!("a,b,{}", if n == 4 { "nan" } else { "1" })), @"expected a finite number in `score` of `[folder]/p.csv`, but found another text in row 5");
        insta::assert_snapshot!(refused("text1,text2,score", 20, &|_| "a,b,1".into()), @"expected different scores in `[folder]/p.csv`, but found 1 in all rows; ranks need differences");
        insta::assert_snapshot!(refused("text1,text2,score", 20, &|n| format!("a,{},1", if n == 2 { " " } else { "b" })), @"expected a text in `text2` of `[folder]/p.csv`, but found an empty text in row 3");
        insta::assert_snapshot!(refused("text1,text2,label", 20, &|_| "a,b,x".into()), @"expected different labels in `[folder]/p.csv`, but found `x` in all rows");
        insta::assert_snapshot!(refused("text1,text2,label", 20, &|_| "a,b,".into()), @"expected a label in `label` of `[folder]/p.csv`, but found nothing in row 1");
        insta::assert_snapshot!(refused("question,answer", 40, &|n| format!("{n},{}", n % 3)), @"expected at least 20 different passages in `[folder]/p.csv`, of which ten are found for each question, but found 3");
    }

    #[test]
    fn texts_are_lines_or_a_column() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name, header: &str, rows| {
            written(folder.path(), name, header, |n| format!("text {n}"), rows)
        };
        let open = |path: &Path| Texts::open(path, &ColumnNames::default(), Parquet::default());
        let lines = open(&write("a.txt", "first", 24)).unwrap();
        let column = open(&write("a.csv", "text", 24)).unwrap();
        assert_eq!(
            (
                lines.count(),
                column.count(),
                lines.lines().next(),
                column.lines().next()
            ),
            (25, 24, Some("first"), Some("text 0"))
        );
        let refused = |path: &Path| {
            open(path)
                .unwrap_err()
                .to_string()
                .replace(&folder.path().display().to_string(), "[folder]")
        };
        insta::assert_snapshot!(refused(&write("b.csv", "text", 19)), @"expected 20 to 5000 texts in `[folder]/b.csv`, 20 of them different, but found 19, 19 of them different");
        let same = written(
            folder.path(),
            "c.csv",
            "text",
            |n| format!("text {}", n % 4),
            50,
        );
        insta::assert_snapshot!(refused(&same), @"expected 20 to 5000 texts in `[folder]/c.csv`, 20 of them different, but found 50, 4 of them different");
        let empty = written(
            folder.path(),
            "d.txt",
            "a",
            |n| {
                if n == 3 {
                    String::new()
                } else {
                    format!("text {n}")
                }
            },
            30,
        );
        insta::assert_snapshot!(refused(&empty), @"expected a text in `text` of `[folder]/d.txt`, but found an empty text in row 5");
        let unknown = written(
            folder.path(),
            "e.csv",
            "first,second",
            |n| format!("a {n},b"),
            30,
        );
        insta::assert_snapshot!(refused(&unknown), @"expected a column `text` in `[folder]/e.csv`, but found `first`, `second`; rename the column with the texts");
    }
}
