//! Searches text files by meaning: `kivu search`.

mod files;
mod index;
mod passages;

use tokio::runtime::Runtime;

use self::{files::Skipped, index::Row, passages::passages};
use kivu::{
    Deadline, Error, Result,
    pipeline::{Input, embedding::similarity::Similarity},
};
use kivu_cli::{Found, Hit, SearchRequest};

/// Passages that are embedded before the index is saved, so that little is lost when the command is stopped.
const TOGETHER: usize = 4096;
/// Memory for vectors and texts grows with the passages.
const MAX_PASSAGES: usize = 200_000;
/// Passages that a ranking model reads, per one that is printed.
const CANDIDATES: usize = 4;
/// Another one when passages are divided or stored in another way.
const VERSION: u32 = 2;
const UNSEARCHED: &str = "hidden files, and those that `.gitignore` names, are left out";

/// Brings the index of the files up to date, and finds the passages that are nearest to the question.
///
/// # Errors
/// A path cannot be read, the index cannot be written, there are too many passages, or the model fails.
pub fn search(request: &SearchRequest<'_>) -> Result<Found> {
    let runtime = Runtime::new().map_err(Error::io("cannot start the model's threads"))?;
    let mut embedder = request.model.embedder(&Default::default())?;
    let similarity = embedder.pipeline.settings().dense()?.similarity;
    // Lengths matter to other similarities.
    embedder.options.normalize = (similarity == Similarity::Cosine).then_some(true);
    let mut embed = |role: &str, inputs: Vec<Input>| {
        let name = embedder.pipeline.prompt_name(role)?;
        embedder.options.prompt_name = name.map(str::to_owned);
        runtime.block_on(embedder.run(inputs, Deadline::none()))
    };

    let path = index::location(request.home, request.paths, &request.model.name)
        .map_err(Error::io("cannot make a place for the index"))?;
    let (digest, settings) = (&request.model.digest, &request.model.settings);
    let origin = format!("{VERSION} {digest} {similarity:?} {settings:?}");
    // Programs that read the table need no addresses of fleets.
    let origin = blake3::hash(origin.as_bytes()).to_hex();
    let save = |rows: &[Row]| {
        index::write(&path, &origin, rows).map_err(Error::cannot("write", path.display()))
    };
    let mut notes = Vec::new();
    let mut rows = index::read(&path, &origin).unwrap_or_else(|error| {
        notes.push(format!("the index is made again: {error}"));
        Vec::new()
    });
    let mut skipped = Skipped::default();
    let mut files = files::walk(request.paths, &mut skipped);
    let before = rows.len();
    rows.retain(|row| files.contains_key(&row.file));
    if rows.len() < before {
        save(&rows)?;
    }
    let mut done = rows.len();
    for row in &rows {
        files.remove(&row.file);
    }
    for (file, path) in files {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        let text = skipped.read(&path).unwrap_or_default();
        let found = passages(&extension, &text).into_iter();
        rows.extend(found.map(|(line, text)| Row {
            file: file.clone(),
            line,
            text,
            vector: Vec::new(),
        }));
        if rows.len() > MAX_PASSAGES {
            let problem = format!("the files have more than {MAX_PASSAGES} passages");
            return Err(Error::config(problem).with_hint("name fewer folders"));
        }
    }
    if rows.is_empty() {
        let hint = skipped.note().unwrap_or_else(|| UNSEARCHED.to_owned());
        return Err(Error::config("found no text in the files").with_hint(hint));
    }
    notes.extend(skipped.note());

    let (passages, mut truncated) = (rows.len(), 0);
    let progress = request.progress;
    progress.stage("embedding passages", passages - done);
    while done < passages {
        let mut end = passages.min(done + TOGETHER);
        // A saved index has all passages of its files.
        while end < passages && rows[end].file == rows[end - 1].file {
            end += 1;
        }
        let texts = rows[done..end].iter().map(|row| &row.text);
        let found = embed("document", texts.cloned().map(Input::Text).collect())?;
        truncated += found.usage.truncated.len();
        for (row, vectors) in rows[done..].iter_mut().zip(found.vectors) {
            row.vector = vectors.dense.unwrap_or_default();
            progress.step();
        }
        done = end;
        save(&rows[..done])?;
    }
    notes.extend(partly_read("embedding", "passages", truncated));
    let question = Input::Text(request.question.to_owned());
    let mut question = embed("query", vec![question])?;
    truncated = question.usage.truncated.len();
    notes.extend(partly_read("embedding", "questions", truncated));
    let question = question.vectors.pop().and_then(|text| text.dense);
    let count = request.ranker.map_or(1, |_| CANDIDATES) * request.top;
    let mut hits = nearest(rows, &question.unwrap_or_default(), similarity, count);
    if let Some(model) = request.ranker {
        let ranker = model.ranker(&Default::default())?;
        let texts = hits.iter().map(|hit| hit.text.clone()).collect();
        let (question, deadline) = (request.question.to_owned(), Deadline::none());
        let (scores, usage) = runtime.block_on(ranker.run(question, texts, deadline))?;
        notes.extend(partly_read("ranking", "passages", usage.truncated.len()));
        let ranked = hits.into_iter().zip(scores);
        hits = best(ranked.map(|(hit, score)| Hit { score, ..hit }), request.top);
    }
    Ok(Found {
        hits,
        notes,
        passages,
        index: path,
    })
}

fn partly_read(model: &str, texts: &str, count: usize) -> Option<String> {
    let note = format!(
        "the {model} model read only the beginning of {texts} with more tokens than it reads: {count}"
    );
    (count > 0).then_some(note)
}

/// The `count` passages with the highest scores, the best first.
fn nearest(rows: Vec<Row>, question: &[f32], similarity: Similarity, count: usize) -> Vec<Hit> {
    let hits = rows.into_iter().map(|row| Hit {
        file: row.file.path,
        line: row.line,
        score: similarity.of(&row.vector, question),
        text: row.text,
    });
    best(hits, count)
}

fn best(hits: impl Iterator<Item = Hit>, count: usize) -> Vec<Hit> {
    let mut hits: Vec<_> = hits.collect();
    hits.sort_by(|left, right| right.score.total_cmp(&left.score));
    hits.truncate(count);
    hits
}

#[cfg(test)]
mod tests {
    use super::{files::TextFile, *};

    #[test]
    fn passages_are_compared_as_the_model_says() {
        let vectors = [[3.0, 3.0], [0.9, 0.0], [0.0, 1.0]];
        let rows: Vec<Row> = vectors
            .iter()
            .zip(1..)
            .map(|(vector, line)| Row {
                file: TextFile::default(),
                line,
                text: String::new(),
                vector: vector.to_vec(),
            })
            .collect();
        let lines = |similarity| {
            let hits = nearest(rows.clone(), &[1.0, 0.0], similarity, 2);
            hits.iter().map(|hit| hit.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(Similarity::Dot), [1, 2]);
        assert_eq!(lines(Similarity::Euclidean), [2, 3]);
        assert_eq!(lines(Similarity::Manhattan), [2, 3]);
    }
}
