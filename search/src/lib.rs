//! Searches text files by meaning: `kivu search`.

mod files;
mod index;
mod passages;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use self::{
    files::{Skipped, Version, walk},
    index::{Index, Row, location},
    passages::{Passage, passages},
};
use kivu::{
    Deadline,
    error::{Error, Result, quoted},
    model::{Model, Pipeline},
    pipeline::{
        Input,
        embedding::similarity::{Similarity, dot},
    },
    task::{
        embedding::{Embedder, EmbeddingParameters},
        ranking::RankingParameters,
    },
};
use kivu_cli::{Found, Hit, SearchRequest};

/// Passages that are embedded together.
const TOGETHER: usize = 1024;
/// Memory for vectors and texts grows with the passages.
const MAX_PASSAGES: usize = 200_000;
/// The time after which a new index is saved, so that little is lost when the command is stopped.
const SAVE_EVERY: Duration = Duration::from_secs(20);
/// Passages that a ranking model reads, per one that is printed.
const CANDIDATES: usize = 4;
/// For the texts that run together.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Another one when passages are divided or stored in another way.
const VERSION: u32 = 1;

/// Brings the index of the files up to date, and finds the passages that are nearest to the question.
///
/// # Errors
/// A path cannot be read, the index cannot be written, there are too many passages, or the model fails.
pub fn search(request: &SearchRequest<'_>) -> Result<Found> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::io("cannot start the model's threads"))?;
    let similarity = similarity(request.model);
    let embed = |role: &str, texts: Vec<String>| {
        let prompt_name = match &request.model.pipeline {
            Pipeline::Embedding(pipeline) => pipeline.prompt_name(role)?.map(str::to_owned),
            _ => None,
        };
        // Vectors that are not compared by cosines keep their lengths.
        let parameters = EmbeddingParameters {
            prompt_name,
            normalize: (similarity == Similarity::Cosine).then_some(true),
            ..EmbeddingParameters::default()
        };
        let embedder = request.model.embedder(&parameters)?;
        runtime.block_on(vectors(&embedder, texts))
    };
    let mut truncated = 0;
    let stored = match similarity {
        Similarity::Cosine => String::new(),
        other => format!(" {other:?}"),
    };
    let settings = serde_json::to_string(&request.model.settings)
        .map_err(|error| Error::inference_because("cannot write the model's settings", error))?;
    let origin = format!("{VERSION} {}{stored} {settings}", request.model.digest);
    let path = location(request.home, request.paths, &request.model.name)?;
    let mut notes = Vec::new();
    let known = Index::read(&path, &origin).unwrap_or_else(|error| {
        notes.push(format!("the index is made again: {error}"));
        None
    });
    let mut update = Update::new(known.unwrap_or_default(), request.paths)?;
    request
        .progress
        .stage("embedding files", update.waiting.len());
    let mut saved = Instant::now();
    while let Some(texts) = update.next_texts()? {
        (0..std::mem::take(&mut update.read_files)).for_each(|_| request.progress.step());
        let (found, cut) = embed("document", texts)?;
        update.add(found);
        truncated += cut;
        if saved.elapsed() > SAVE_EVERY {
            update.index.write(&path, &origin)?;
            saved = Instant::now();
        }
    }
    if update.is_changed {
        update.index.write(&path, &origin)?;
    }
    if update.index.rows.is_empty() {
        let paths = request.paths.iter();
        let paths: Vec<_> = paths.map(|path| path.to_string_lossy()).collect();
        let error = Error::config(format!("found no text in {}", quoted(&paths)));
        return Err(match update.skipped.is_empty() {
            true => error,
            false => error.with_hint(update.skipped.to_string()),
        });
    }
    if !update.skipped.is_empty() {
        notes.push(update.skipped.to_string());
    }
    if truncated > 0 {
        notes.push(format!(
            "only the beginning is searched in passages with more tokens than the model reads: {truncated}"
        ));
    }
    let (question, cut) = embed("query", vec![request.question.to_owned()])?;
    if cut > 0 {
        notes.push("the question was truncated to the model's token limit".to_owned());
    }
    let question = question
        .first()
        .ok_or_else(|| Error::model("expected a vector, but found none"))?;
    let count = match request.ranker {
        Some(_) => CANDIDATES * request.top,
        None => request.top,
    };
    let mut hits = nearest(&update.index.rows, question, similarity, count);
    if let Some(model) = request.ranker {
        let ranker = model.ranker(&RankingParameters::default())?;
        let texts = hits.iter().map(|hit| hit.text.clone()).collect();
        let deadline = Deadline::within(TIMEOUT);
        let (scores, usage) =
            runtime.block_on(ranker.run(request.question.to_owned(), texts, deadline))?;
        if !usage.truncated.is_empty() {
            notes.push(format!(
                "the ranking model read only the beginning of passages with more tokens than it reads: {}",
                usage.truncated.len()
            ));
        }
        for (hit, score) in hits.iter_mut().zip(scores) {
            hit.score = score;
        }
        hits.sort_by(|left, right| right.score.total_cmp(&left.score));
    }
    hits.truncate(request.top);
    Ok(Found {
        hits,
        notes,
        passages: update.index.rows.len(),
        index: path,
    })
}

/// The texts' vectors, and how many texts were truncated.
async fn vectors(embedder: &Embedder, texts: Vec<String>) -> Result<(Vec<Vec<f32>>, usize)> {
    let inputs = texts.into_iter().map(Input::Text).collect();
    let found = embedder.run(inputs, Deadline::within(TIMEOUT)).await?;
    let dense = found.vectors.into_iter().map(|text| text.dense);
    let dense = dense
        .collect::<Option<_>>()
        .ok_or_else(|| Error::config("search needs a model with dense vectors"))?;
    Ok((dense, found.usage.truncated.len()))
}

/// How the model's vectors are to be compared.
fn similarity(model: &Model) -> Similarity {
    let dense = match &model.pipeline {
        Pipeline::Embedding(pipeline) => pipeline.settings().dense.as_ref(),
        _ => None,
    };
    dense.map(|dense| dense.similarity).unwrap_or_default()
}

/// The `count` passages with the highest scores, the best first. Vectors that are compared by cosines have length 1.
fn nearest(rows: &[Row], question: &[f32], similarity: Similarity, count: usize) -> Vec<Hit> {
    let score = |row: &Row| match similarity {
        Similarity::Cosine => dot(&row.vector, question),
        other => other.of(&row.vector, question),
    };
    let mut scores: Vec<(f32, usize)> = rows.iter().map(score).zip(0..).collect();
    scores.sort_by(|(left, first), (right, second)| right.total_cmp(left).then(first.cmp(second)));
    let best = scores.into_iter().take(count);
    best.map(|(score, row)| Hit {
        file: rows[row].path.to_string(),
        line: rows[row].line,
        score,
        text: rows[row].text.clone(),
    })
    .collect()
}

/// An index on its way to the files' state.
struct Update {
    index: Index,
    /// Files to read, the last first.
    waiting: Vec<(PathBuf, Version)>,
    /// Passages that were read, but have no vectors yet.
    read: Vec<(Arc<str>, Passage)>,
    skipped: Skipped,
    is_changed: bool,
    /// Files that were read since they were reported.
    read_files: usize,
}

impl Update {
    /// Keeps the passages of unchanged files.
    fn new(mut index: Index, paths: &[PathBuf]) -> Result<Self> {
        let mut skipped = Skipped::default();
        let files = walk(paths, &mut skipped)?;
        let is_known = |path: &Path, version: &Version| {
            index.files.get(&*path.to_string_lossy()) == Some(version)
        };
        let (kept, mut waiting): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|(path, version)| is_known(path, version));
        let kept: HashSet<_> = kept
            .iter()
            .map(|(path, _)| path.to_string_lossy())
            .collect();
        let before = index.rows.len();
        index.rows.retain(|row| kept.contains(&*row.path));
        index.files.retain(|path, _| kept.contains(&**path));
        waiting.reverse();
        Ok(Self {
            is_changed: index.rows.len() != before,
            index,
            waiting,
            read: Vec::new(),
            skipped,
            read_files: 0,
        })
    }

    /// The texts of the next files; `None` after the last.
    fn next_texts(&mut self) -> Result<Option<Vec<String>>> {
        while self.read.len() < TOGETHER
            && let Some((path, version)) = self.waiting.pop()
        {
            self.read_files += 1;
            let Some(text) = self.skipped.read(&path) else {
                continue;
            };
            let name: Arc<str> = path.to_string_lossy().into();
            let extension = path.extension().unwrap_or_default().to_string_lossy();
            let found = passages(&extension, &text).into_iter();
            self.read
                .extend(found.map(|passage| (Arc::clone(&name), passage)));
            self.index.files.insert(name, version);
            if self.index.rows.len() + self.read.len() > MAX_PASSAGES {
                return Err(Error::config(format!(
                    "expected files with at most {MAX_PASSAGES} passages, but found more"
                ))
                .with_hint("name fewer folders"));
            }
        }
        let texts = self
            .read
            .iter()
            .map(|(_, passage)| passage.text.clone())
            .collect();
        Ok((!self.read.is_empty()).then_some(texts))
    }

    fn add(&mut self, vectors: Vec<Vec<f32>>) {
        self.is_changed = true;
        for ((path, Passage { line, text }), vector) in self.read.drain(..).zip(vectors) {
            self.index.rows.push(Row {
                path,
                line,
                text,
                vector,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_compared_as_the_model_says() {
        let vectors = [[3.0, 3.0], [0.9, 0.0], [0.0, 1.0]];
        let rows: Vec<Row> = vectors
            .iter()
            .zip(1..)
            .map(|(vector, line)| Row {
                path: "a.txt".into(),
                line,
                text: String::new(),
                vector: vector.to_vec(),
            })
            .collect();
        let lines = |similarity| {
            let hits = nearest(&rows, &[1.0, 0.0], similarity, 2);
            hits.iter().map(|hit| hit.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(Similarity::Dot), [1, 2]);
        assert_eq!(lines(Similarity::Euclidean), [2, 3]);
        assert_eq!(lines(Similarity::Manhattan), [2, 3]);
    }
}
