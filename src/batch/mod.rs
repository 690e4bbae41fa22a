//! Files of texts to files of answers: row for row, in the same form, with memory that does not grow.
//!
//! A thread reads and a thread writes; between them texts are answered, a few chunks at a time, in order. What was
//! written is in pieces that stand on their own, so that a job can stop after any of them and go on in another
//! process: see [`checkpoint`].

mod answer;
mod checkpoint;
mod compression;
mod event;
mod function;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod input;
mod large;
mod output;
mod parameters;
mod report;
mod rows;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;

use self::{
    answer::{Answer, Answerer, Answers, Kind},
    checkpoint::{Checkpoint, Claim},
    compression::Compression,
    input::Place,
    output::{Head, Pieces, Shape, Target},
    rows::{Chunk, JsonLinesReader, Outcome, Reader, Rows},
};
pub use self::{
    function::Function,
    parameters::Parameters,
    report::{Progress, Report, Status},
};
use crate::{
    error::{Error, Result},
    model::Model,
    repository::{
        Meter,
        s3::{Condition, Object, Store, Url, fit_key},
    },
};

/// Chunks that are answered at once, so that one's last texts do not wait for the next one's first.
const CHUNKS_AT_ONCE: usize = 3;
/// What is added to an output's name for its report.
const REPORT: &str = ".report.json";

/// A file to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of this machine.
    File(PathBuf),
    /// An object of S3, as it was found.
    Object(Url, Object),
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// A file of this machine.
    File(PathBuf),
    /// An object of S3.
    Object(Url),
}

/// A file, what is asked of it, and where the answers go.
pub struct Job {
    /// The file.
    pub source: Source,
    /// Where the answers go.
    pub sink: Sink,
    /// What answers.
    pub model: Model,
    /// What is asked.
    pub parameters: Parameters,
    /// Watches the bytes that are read.
    pub meter: Arc<dyn Meter + Send + Sync>,
    /// When to stop and save, to go on another time.
    pub until: Option<Instant>,
    /// How often to save, if not even that much output came together.
    pub interval: Duration,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Its report is written, and unless it failed, its output.
    Done(Report),
    /// The output was there already.
    Known,
    /// Time was up; it goes on where it stopped when it is run again.
    Unfinished(Progress),
}

impl Job {
    /// Runs the job, or goes on with it.
    ///
    /// An input that cannot be read is no error of this function: its report says so, since running the job again
    /// would not help.
    pub async fn run(self) -> Result<Ended> {
        let (answerer, mut reader, shape) = match guarded(|| self.open()) {
            Ok(opened) => opened,
            Err(error) => return self.fail(error),
        };
        let (target, progress) = match &self.sink {
            Sink::File(path) => (Target::file(path)?, Progress::default()),
            Sink::Object(url) => match Checkpoint::claim(&Store::open()?, url, &self.id()?, self.interval)? {
                Claim::Done => return Ok(Ended::Known),
                Claim::Taken(checkpoint) => {
                    let progress = checkpoint.progress().clone();
                    (Target::Upload(checkpoint), progress)
                }
            },
        };
        let pieces = match &target {
            Target::Upload(checkpoint) if checkpoint.is_whole() => {
                checkpoint.complete()?;
                return self.done(&target, progress);
            }
            Target::Upload(checkpoint) if progress.rows > 0 => {
                Pieces::resumed(shape, checkpoint.waiting.clone(), checkpoint.footers().clone())
            }
            _ => Pieces::new(shape),
        };
        guarded(|| reader.skip(progress.rows))?;
        self.work(answerer, reader, Work { target, pieces, progress }).await
    }

    /// What answers, the rows, and what the output looks like.
    fn open(&self) -> Result<(Answerer, Reader, Shape)> {
        let answerer = Answerer::new(self.model.clone(), &self.parameters)?;
        let place = match &self.source {
            Source::File(path) => Place::local(path)?,
            Source::Object(url, object) => Place::S3(Store::open()?, url.clone(), object.clone()),
        };
        let form = place.form()?;
        self.meter.begin("batch", place.size());
        let reader = place.open(form, self.parameters.column.as_deref(), Arc::clone(&self.meter))?;
        let shape = Shape::of(&reader, form.1, answerer.kind());
        Ok((answerer, reader, shape))
    }

    /// Reads, answers and writes until the end of the input, or of the time.
    async fn work(self, answerer: Answerer, reader: Reader, mut work: Work) -> Result<Ended> {
        let started = Instant::now();
        let before = work.progress.seconds;
        let is_over = Arc::new(AtomicBool::new(false));
        let chunks = read(reader, self.until, Arc::clone(&is_over));
        let (answered, to_write) = flume::bounded::<(Rows, Answers)>(1);
        let writing = thread::Builder::new().name("batch-writer".into()).spawn(move || {
            let outcome = to_write.iter().try_for_each(|(rows, answers)| {
                work.progress.seconds = before + started.elapsed().as_secs_f64();
                work.take(rows, &answers)
            });
            work.progress.seconds = before + started.elapsed().as_secs_f64();
            outcome.map(|()| work)
        });
        let writing = writing.map_err(Error::io("cannot start a thread for the output"))?;
        let answer = |chunk: Result<Chunk>| async {
            let Chunk { texts, rows } = chunk?;
            Ok::<_, Error>((rows, answerer.answer(texts).await?))
        };
        let mut answers = chunks.into_stream().map(answer).buffered(CHUNKS_AT_ONCE);
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer {
                // A writer that has stopped says why below.
                Ok(answer) => {
                    if answered.send_async(answer).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop((answers, answered));
        let joined = tokio::task::spawn_blocking(move || writing.join()).await;
        let panicked = || Error::inference("the job's output panicked", "nothing is known of its cause");
        let work = joined.map_err(|_| panicked())?.map_err(|_| panicked())?;
        let (mut work, failure) = match (work, failure) {
            (Ok(work), failure) => (work, failure),
            (Err(error), _) => return Err(error),
        };
        match failure {
            Some(error) if is_permanent(&error) => {
                if let Target::Upload(checkpoint) = &work.target {
                    checkpoint.abandon()?;
                }
                return self.fail(error);
            }
            Some(error) => {
                // What was done until then need not be done again.
                work.save()?;
                return Err(error);
            }
            None => {}
        }
        if is_over.load(Ordering::Relaxed) {
            work.save()?;
            return Ok(Ended::Unfinished(work.progress));
        }
        work.finish()?;
        let progress = work.progress.clone();
        self.done(&work.into_target()?, progress)
    }

    /// Writes the report of a job whose output is there, and forgets where it stood.
    fn done(&self, target: &Target, progress: Progress) -> Result<Ended> {
        let report = self.report(Status::Finished, None, progress);
        self.write_report(&report)?;
        if let Target::Upload(checkpoint) = target {
            checkpoint.forget()?;
        }
        Ok(Ended::Done(report))
    }

    /// Writes the report of a job that cannot be done; other errors are passed on, since they may pass.
    fn fail(&self, error: Error) -> Result<Ended> {
        if !is_permanent(&error) {
            return Err(error);
        }
        let report = self.report(Status::Failed, Some(error.chain()), Progress::default());
        self.write_report(&report)?;
        Ok(Ended::Done(report))
    }

    fn report(&self, status: Status, error: Option<String>, progress: Progress) -> Report {
        let version = match &self.source {
            Source::File(_) => None,
            Source::Object(_, object) => Some(object.version.clone().unwrap_or_else(|| object.etag.clone())),
        };
        Report {
            status,
            error,
            input: self.source.to_string(),
            version,
            output: self.sink.to_string(),
            model: self.model.name.clone(),
            model_digest: self.model.digest.clone(),
            task: self.model.manifest.task.to_string(),
            missing: Vec::new(),
            progress,
        }
    }

    fn write_report(&self, report: &Report) -> Result<()> {
        self.sink.write_report(report)
    }

    /// The same for the same object, version, model and parameters.
    fn id(&self) -> Result<String> {
        let version = match &self.source {
            Source::File(path) => {
                let about = std::fs::metadata(path)
                    .map_err(Error::io(format!("cannot read `{}`", path.display())))?;
                format!("{}, {:?}", about.len(), about.modified().ok())
            }
            Source::Object(_, object) => format!("{:?}, {}", object.version, object.etag),
        };
        let parameters = serde_json::to_string(&self.parameters)
            .map_err(|error| Error::inference("the parameters cannot be written", error))?;
        let all = [self.source.to_string(), version, self.model.digest.clone(), parameters].join("\n");
        Ok(blake3::hash(all.as_bytes()).to_hex().to_string())
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Object(url, _) => url.fmt(f),
        }
    }
}

impl std::fmt::Display for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Object(url) => url.fmt(f),
        }
    }
}

impl Sink {
    fn write_report(&self, report: &Report) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(report)
            .map_err(|error| Error::inference("the report cannot be written", error))?;
        text.push(b'\n');
        match self {
            Self::File(path) => {
                let mut name = path.clone().into_os_string();
                name.push(REPORT);
                std::fs::write(&name, text)
                    .map_err(Error::io(format!("cannot write `{}`", PathBuf::from(&name).display())))
            }
            Self::Object(url) => {
                let url = url.with_key(fit_key(&format!("{}{REPORT}", url.key)));
                Store::open()?.put(&url, text, &Condition::None, &Default::default()).map(|_| ())
            }
        }
    }
}

/// An output in the making.
struct Work {
    target: Target,
    pieces: Pieces,
    progress: Progress,
}

impl Work {
    fn take(&mut self, rows: Rows, answers: &Answers) -> Result<()> {
        self.pieces.write(rows, &answers.outcomes)?;
        self.progress.add(answers);
        match &mut self.target {
            Target::File(file, _) if self.pieces.len() >= FILE_PIECE => {
                Target::append(file.as_file_mut(), &self.pieces.take()?)
            }
            Target::Upload(checkpoint) => {
                checkpoint.begin()?;
                if self.pieces.len() >= checkpoint.part_bytes() {
                    let bytes = self.pieces.take()?;
                    checkpoint.send(bytes, &mut self.pieces, &self.progress)
                } else if checkpoint.is_due() {
                    checkpoint.save(&mut self.pieces, &self.progress)
                } else {
                    Ok(())
                }
            }
            Target::File(..) => Ok(()),
        }
    }

    fn save(&mut self) -> Result<()> {
        match &mut self.target {
            Target::Upload(checkpoint) => {
                checkpoint.begin()?;
                checkpoint.save(&mut self.pieces, &self.progress)
            }
            Target::File(..) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        let bytes = self.pieces.take_last()?;
        match &mut self.target {
            Target::File(file, _) => Target::append(file.as_file_mut(), &bytes),
            Target::Upload(checkpoint) => {
                checkpoint.begin()?;
                checkpoint.finish(bytes, &mut self.pieces, &self.progress)
            }
        }
    }

    /// The target, whole: a file gets its name.
    fn into_target(self) -> Result<Target> {
        match self.target {
            Target::File(file, path) => {
                let failed = format!("cannot write `{}`", path.display());
                let scratch =
                    file.persist(&path).map_err(|error| Error::Io { action: failed, source: error.error })?;
                // The file was made for this process alone.
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
                scratch.set_permissions(mode).map_err(Error::io("cannot write the output"))?;
                Target::file(&path)
            }
            upload => Ok(upload),
        }
    }
}

/// Reads JSON Lines and writes them with answers that cost nothing; gives the number of rows.
pub fn pass_through(lines: Vec<u8>) -> Result<usize> {
    let contents: Box<dyn std::io::Read + Send> = Box::new(std::io::Cursor::new(lines));
    let mut reader = Reader::JsonLines(JsonLinesReader::new(contents, None));
    let shape = Shape { compression: Compression::None, kind: Kind::Label, head: Head::JsonLines };
    let (mut pieces, mut rows, label) = (Pieces::new(shape), 0, Arc::from("label"));
    while let Some(Chunk { texts, rows: lines }) = reader.next()? {
        let answer = |text| Result::map(text, |_| Answer::Label { label: Arc::clone(&label), score: 0.5 });
        let outcomes: Vec<Outcome> = texts.into_iter().map(answer).collect();
        rows += outcomes.len();
        pieces.write(lines, &outcomes)?;
        if pieces.len() >= FILE_PIECE {
            pieces.take()?;
        }
    }
    Ok(rows)
}

/// What is written to a file of this machine at once.
const FILE_PIECE: usize = 4 * 1024 * 1024;

/// The rows of the input, read on a thread of its own until its end or until time is up.
fn read(
    mut reader: Reader,
    until: Option<Instant>,
    is_over: Arc<AtomicBool>,
) -> flume::Receiver<Result<Chunk>> {
    let (chunks, read) = flume::bounded(1);
    thread::spawn(move || {
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                is_over.store(true, Ordering::Relaxed);
                return;
            }
            let Some(chunk) = guarded(|| reader.next()).transpose() else { return };
            let is_last = chunk.is_err();
            // Whoever took them has gone, or wants no more.
            if chunks.send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    read
}

/// Reads of a file what a library may panic over, as Parquet's may where one is damaged: what came before must not pass
/// for the whole.
fn guarded<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    let broke = |_| {
        Err(Error::invalid("expected a file that can be read, but found one that its reader breaks off at"))
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(broke)
}

/// Whether running a job again would end in the same error.
fn is_permanent(error: &Error) -> bool {
    matches!(
        error,
        Error::Malformed { .. }
            | Error::Invalid { .. }
            | Error::TooLarge { .. }
            | Error::Config { .. }
            | Error::UnknownModel { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Chain, Cursor, Read, Result as Reading};

    use super::*;

    struct Breaks;

    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> Reading<usize> {
            panic!("made by the test")
        }
    }

    #[test]
    fn rows_before_a_panic_of_their_reader_do_not_pass_for_the_whole_file() {
        let lines = "{\"text\": \"a\"}\n".repeat(3 * rows::CHUNK_ROWS);
        let contents: Chain<Cursor<String>, Breaks> = Cursor::new(lines).chain(Breaks);
        let reader = Reader::JsonLines(JsonLinesReader::new(Box::new(contents), None));
        let chunks: Vec<_> = read(reader, None, Arc::default()).into_iter().collect();
        let (last, before) = chunks.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok));
        assert!(last.as_ref().is_err_and(is_permanent));
    }
}
