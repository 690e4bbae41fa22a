//! A job from its first row, or from where it was stopped, to its report.

use std::{
    fs,
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use futures::StreamExt;
use uuid::Uuid;

use super::{
    Ended, Job, Sink, Source,
    answer::{Answerer, Answers},
    checkpoint::{Checkpoint, Claim},
    input::{Gauge, Place},
    local::{self, OutputFile, Stream},
    output::{Pieces, Shape, Target},
    report::{Progress, Report, Status},
    rows::{Chunk, Reader, Rows},
    work::Work,
};
use crate::{
    error::{Error, Result},
    repository::s3::{Store, Url},
};

/// Chunks that are answered at once, so that one's last texts do not wait for the next one's first.
const CHUNKS_AT_ONCE: usize = 3;

/// A job before its first row.
enum Begun {
    Ended(Ended),
    Ready(Box<(Answerer, Input, Work)>),
}

/// Rows to be read, and how far they are.
struct Input {
    reader: Reader,
    gauge: Gauge,
    place: Place,
}

impl Input {
    fn share(&self) -> Option<f64> {
        self.gauge.share(self.reader.position(), self.place.size())
    }
}

/// Where answers go, checked.
enum Destination {
    Stream(Stream),
    File(OutputFile),
    Object(Url),
}

impl Job {
    /// Runs the job, or continues it.
    ///
    /// An input that cannot be read is no error of this function: its report says so, since running the job again
    /// would not help.
    pub async fn run(self) -> Result<Ended> {
        self.run_until(pending()).await
    }

    /// Runs the job until it ends, or until `stop`: what is done by then is saved. Work that is under way goes on in the
    /// background, without effect.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Ended> {
        let mut stop = pin!(stop);
        let job = self.clone();
        // A FIFO can keep a thread waiting for its other end.
        let begun = tokio::task::spawn_blocking(move || job.begin());
        let begun = tokio::select! {
            biased;
            begun = begun => begun.map_err(|_| panicked("beginning"))??,
            () = &mut stop => return Ok(Ended::Unfinished(Progress::default())),
        };
        match begun {
            Begun::Ended(ended) => Ok(ended),
            Begun::Ready(ready) => {
                let (answerer, input, work) = *ready;
                self.work(answerer, input, work, stop).await
            }
        }
    }

    /// Whether the job can be continued after it was stopped: its input can be read again, and its output is not a
    /// stream.
    pub fn is_resumable(&self) -> bool {
        let is_file = |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
        let can_be_read_again = match &self.source {
            Source::File(path) => is_file(path),
            Source::Stdin => false,
            Source::Object(..) => true,
        };
        let is_stream = match &self.sink {
            Sink::File(path) => Stream::of(path).is_some(),
            Sink::Stdout => true,
            Sink::Object(_) => false,
        };
        can_be_read_again && !is_stream
    }

    /// Everything up to the first row that is not done.
    fn begin(&self) -> Result<Begun> {
        let destination = self.destination()?;
        let (answerer, mut input, shape) = match guarded(|| self.open()) {
            Ok(opened) => opened,
            Err(error) => return self.fail(error).map(Begun::Ended),
        };
        let mut notes: Vec<String> = shape.format().note(&self.sink.to_string()).into_iter().collect();
        if let Reader::Csv(reader) = &input.reader {
            notes.extend_from_slice(reader.notes());
        }
        let version = input.place.version()?;
        let (id, is_resumable) = (self.id(version.as_deref())?, version.is_some());
        let checkpoint = match destination {
            Destination::Stream(stream) => {
                let (target, pieces) = (Target::Stream(stream.open()?), Pieces::new(shape));
                self.watcher.begin(&self.source.to_string(), 0);
                let work = Work { target, pieces, progress: Progress::default(), notes, is_resumable };
                return Ok(Begun::Ready(Box::new((answerer, input, work))));
            }
            Destination::File(output) => Checkpoint::claim_file(output, &id, is_resumable, self.interval)?,
            Destination::Object(url) => {
                match Checkpoint::claim(&Store::open()?, &url, &id, self.interval, self.existing) {
                    Ok(Claim::Done) => return Ok(Begun::Ended(Ended::Known)),
                    Ok(Claim::Taken(checkpoint)) => checkpoint,
                    // An object that is not Kivu's: the event that asked for the job need not come again.
                    Err(error) => return self.fail(error).map(Begun::Ended),
                }
            }
        };
        let progress = checkpoint.progress().clone();
        let is_whole = checkpoint.is_whole();
        let pieces = if progress.rows > 0 {
            Pieces::resumed(shape, checkpoint.waiting.clone(), checkpoint.footers().clone())
        } else {
            Pieces::new(shape)
        };
        if is_whole {
            checkpoint.complete()?;
            let work = Work { target: Target::Saved(checkpoint), pieces, progress, notes, is_resumable };
            return self.done(work).map(Begun::Ended);
        }
        guarded(|| input.reader.skip(progress.rows))?;
        self.watcher.begin(&self.source.to_string(), progress.rows);
        self.watcher.advance(progress.rows, input.share());
        let work = Work { target: Target::Saved(checkpoint), pieces, progress, notes, is_resumable };
        Ok(Begun::Ready(Box::new((answerer, input, work))))
    }

    /// Where the answers go, if they may go there.
    fn destination(&self) -> Result<Destination> {
        Ok(match &self.sink {
            Sink::Stdout => Destination::Stream(Stream::Stdout),
            Sink::File(path) => match Stream::of(path) {
                Some(stream) => Destination::Stream(stream),
                None => Destination::File(OutputFile::new(path, &self.source, self.existing)?),
            },
            Sink::Object(url) => {
                if url.key.is_empty() || url.key.ends_with('/') {
                    return Err(Error::config(format!(
                        "expected the key of an object for the output, but found the prefix `{url}`"
                    )));
                }
                if matches!(&self.source, Source::Object(input, _) if input == url) {
                    return Err(Error::config(format!(
                        "expected an output other than the input, but both are `{url}`"
                    )));
                }
                Destination::Object(url.clone())
            }
        })
    }

    /// What answers, the rows, and what the output looks like.
    fn open(&self) -> Result<(Answerer, Input, Shape)> {
        let answerer = Answerer::new(self.model.clone(), &self.parameters)?;
        let place = Place::open_source(&self.source)?;
        let format = place.format(self.parameters.format)?;
        let gauge = Gauge::default();
        let reader = place.open(format, self.parameters.column.as_deref(), &gauge)?;
        let shape = Shape::of(&reader, format.1, answerer.kind());
        Ok((answerer, Input { reader, gauge, place }, shape))
    }

    /// Reads, answers and writes until the end of the input, of the time, or until it is stopped.
    async fn work(
        self,
        answerer: Answerer,
        input: Input,
        mut work: Work,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Ended> {
        let started = Instant::now();
        let before = work.progress.seconds;
        let is_stream = matches!(work.target, Target::Stream(_));
        let mut handed_on = work.progress.clone();
        let is_over = Arc::new(AtomicBool::new(false));
        let (place, version) = (input.place.clone(), input.place.version()?);
        let chunks = read(input, self.until, Arc::clone(&is_over));
        let (answered, to_write) = flume::bounded::<(Rows, Answers, Option<f64>)>(1);
        let watcher = Arc::clone(&self.watcher);
        let writing = thread::Builder::new().name("batch-writer".into()).spawn(move || {
            let outcome = to_write.iter().try_for_each(|(rows, answers, share)| {
                work.progress.seconds = before + started.elapsed().as_secs_f64();
                work.take(rows, &answers)?;
                watcher.advance(work.progress.rows, share);
                Ok(())
            });
            work.progress.seconds = before + started.elapsed().as_secs_f64();
            (work, outcome)
        });
        let writing = writing.map_err(Error::io("cannot start a thread for the output"))?;
        let answer = |chunk: Result<(Chunk, Option<f64>)>| async {
            let (Chunk { texts, rows }, share) = chunk?;
            Ok::<_, Error>((rows, answerer.answer(texts).await?, share))
        };
        let mut answers = chunks.into_stream().map(answer).buffered(CHUNKS_AT_ONCE);
        let (mut failure, mut is_stopped) = (None, false);
        loop {
            let next = async {
                let Some(answer) = answers.next().await else { return Ok(None) };
                let answer = answer?;
                let rows = answer.1.outcomes.len() as u64;
                // A writer that has stopped says why below.
                Ok::<_, Error>(answered.send_async(answer).await.ok().map(|()| rows))
            };
            let next = tokio::select! {
                biased;
                () = &mut stop => {
                    is_stopped = true;
                    break;
                }
                next = next => next,
            };
            match next {
                Ok(Some(rows)) => handed_on.rows += rows,
                Ok(None) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop((answers, answered));
        if is_stopped && is_stream {
            // A pipe that nobody reads would keep its writer for ever.
            return Ok(Ended::Unfinished(handed_on));
        }
        let joined = tokio::task::spawn_blocking(move || writing.join()).await;
        let (work, written) = joined.map_err(|_| panicked("output"))?.map_err(|_| panicked("output"))?;
        if let Err(error) = written {
            // What was saved can be continued.
            work.drop_stream()?;
            return Err(error);
        }
        match failure {
            Some(error) if is_permanent(&error) => {
                if let Target::Saved(checkpoint) = &work.target {
                    checkpoint.abandon()?;
                }
                return self.fail(error);
            }
            Some(error) => {
                work.pause()?;
                return Err(error);
            }
            None => {}
        }
        if is_stopped || is_over.load(Ordering::Relaxed) {
            return work.pause().map(Ended::Unfinished);
        }
        let work = tokio::task::spawn_blocking(move || {
            let mut work = work;
            if place.version()? != version {
                work.notes.push("the input was changed while it was read".to_owned());
            }
            work.finish().map(|()| work)
        });
        self.done(work.await.map_err(|_| panicked("output"))??)
    }

    /// Writes the report of a job whose output is there, and removes its checkpoint.
    fn done(&self, work: Work) -> Result<Ended> {
        let mut report = self.report(Status::Finished, None, work.progress);
        report.notes = work.notes;
        match &work.target {
            Target::Stream(_) => {}
            Target::Saved(checkpoint) => {
                report.output_digest = checkpoint.digest().map(str::to_owned);
                self.write_report(&report)?;
                checkpoint.forget()?;
            }
        }
        Ok(Ended::Done(Box::new(report)))
    }

    /// Writes the report of a job that cannot be done; other errors are passed on, since they may pass.
    pub(super) fn fail(&self, error: Error) -> Result<Ended> {
        if !is_permanent(&error) {
            return Err(error);
        }
        let mut report = self.report(Status::Failed, Some(error.chain()), Progress::default());
        // The output of an earlier job is still there, and may still be replaced.
        report.output_digest = match &self.sink {
            Sink::File(path) => local::known_digest(path),
            Sink::Stdout | Sink::Object(_) => None,
        };
        self.write_report(&report)?;
        Ok(Ended::Done(Box::new(report)))
    }

    pub(super) fn report(&self, status: Status, error: Option<String>, progress: Progress) -> Report {
        let version = match &self.source {
            Source::File(_) | Source::Stdin => None,
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
            output_digest: None,
            notes: Vec::new(),
            missing: Vec::new(),
            progress,
        }
    }

    pub(super) fn write_report(&self, report: &Report) -> Result<()> {
        self.sink.write_report(report)
    }

    /// The same for the same input, version, model and parameters; every stream is another.
    fn id(&self, version: Option<&str>) -> Result<String> {
        let version = version.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
        let parameters = serde_json::to_string(&self.parameters)
            .map_err(|error| Error::inference_because("the parameters cannot be written", error))?;
        let all = [version, self.model.digest.clone(), parameters].join("\n");
        Ok(blake3::hash(all.as_bytes()).to_hex().to_string())
    }
}

/// The rows of the input, each chunk with the share of the input that it ends at, read on a thread of its own until the
/// end or until time is up.
fn read(
    mut input: Input,
    until: Option<Instant>,
    is_over: Arc<AtomicBool>,
) -> flume::Receiver<Result<(Chunk, Option<f64>)>> {
    let (chunks, read) = flume::bounded(1);
    thread::spawn(move || {
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                is_over.store(true, Ordering::Relaxed);
                return;
            }
            let Some(chunk) = guarded(|| input.reader.next()).transpose() else { return };
            let chunk = chunk.map(|chunk| (chunk, input.share()));
            let is_last = chunk.is_err();
            // The receiver has gone, or wants no more.
            if chunks.send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    read
}

fn panicked(what: &str) -> Error {
    Error::inference_because(format!("the job's {what} panicked"), "nothing is known of its cause")
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
    use crate::batch::rows::{CHUNK_ROWS, JsonLinesReader};

    struct Breaks;

    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> Reading<usize> {
            panic!("made by the test")
        }
    }

    #[test]
    fn rows_before_a_panic_of_their_reader_do_not_pass_for_the_whole_file() {
        let lines = "{\"text\": \"a\"}\n".repeat(3 * CHUNK_ROWS);
        let contents: Chain<Cursor<String>, Breaks> = Cursor::new(lines).chain(Breaks);
        let reader = Reader::JsonLines(JsonLinesReader::new(Box::new(contents), None));
        let place = Place::local(Path::new("/dev/null")).unwrap();
        let input = Input { reader, gauge: Gauge::default(), place };
        let chunks: Vec<_> = read(input, None, Arc::default()).into_iter().collect();
        let (last, before) = chunks.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok));
        assert!(last.as_ref().is_err_and(is_permanent));
    }
}
