//! A job: from its first row, or the row where it was stopped, to its report.

pub mod benchmark;
pub mod identity;
pub mod listing;
pub mod parameters;
pub mod predictor;
pub mod process;
pub mod requests;
pub mod watcher;

use std::{
    fs,
    future::{Future, pending},
    io, mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::LocalBoxFuture;

use super::{
    events::parts::Parts,
    input::{
        compression::Compression,
        format::Format,
        location::{Existing, JobInput, JobOutput, OutputStream},
        opened::{BytesRead, OpenInput},
    },
    job::{
        identity::Identity,
        parameters::Parameters,
        predictor::Predictor,
        process::{End, RowInput, catch_panic, open_rows, panicked, process},
        requests::Answerer,
        watcher::Watcher,
    },
    output::{
        answer::Columns,
        checkpoint::{Checkpoint, State},
        local_storage,
        output_file::OutputFile,
        output_form::OutputForm,
        pieces::{Pieces, Shape},
        progress_object::{JobFacts, ProgressObject},
        report::{Progress, Report, Status},
        report_file, s3_storage,
        target::{Target, Writer},
    },
    rows::{CsvOptions, Layout, Parquet, TextReader},
    sink::{SinkSettings, SinkWriter},
};
use kivu::{
    Error, Result,
    model::Model,
    repository::s3::{Change, Store, Url},
    task::requests::{Requests, Respond},
    telemetry::{
        job::{JobOutcome, JobRecord},
        trace::Trace,
    },
};

/// A job: runs a model on one input's rows.
#[derive(Clone)]
pub struct Job {
    /// The file, object or stream with the rows.
    pub input: JobInput,
    /// The file, object or stream that the rows with their answers are written to.
    pub output: JobOutput,
    /// Runs on each row's text.
    pub model: Box<Model>,
    /// How the model runs.
    pub parameters: Box<Parameters>,
    /// Answers rows that are requests; without it, they are refused.
    pub requests: Option<Requests>,
    /// Observes the progress.
    pub watcher: Arc<dyn Watcher>,
    /// Time at which the job is saved and stopped, to be resumed later.
    pub until: Option<Instant>,
    /// Maximum time between saves if the output grows by less than a part.
    pub interval: Duration,
    /// The treatment of files from earlier runs, for local outputs.
    pub existing: Existing,
    /// Stores the vectors; then, the output gets only the rows that have errors.
    pub sink: Option<SinkSettings>,
    /// Reads and writes Parquet, if the program can.
    pub parquet: Parquet,
    /// The trace that the job's spans belong to.
    pub trace: Option<Trace>,
}

/// How a job run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// The report is written, and unless the job failed, the output.
    Done(Box<Report>),
    /// The output exists.
    Known,
    /// The job was stopped. Unless its input is a stream, the next run resumes it.
    Unfinished(Progress),
}

/// A job that is ready to read its first row.
struct Ready {
    answerer: Answerer,
    input: OpenInput,
    rows: RowInput,
    writer: Writer,
}

/// An opened input, before the checkpoint is read.
struct Opened {
    answerer: Answerer,
    input: OpenInput,
    format: (Format, Compression),
    table: Table,
    sink: Option<SinkWriter>,
}

/// Input rows and output form.
struct Table {
    rows: RowInput,
    shape: Shape,
    notes: Vec<String>,
}

/// A checked output.
enum Destination {
    Stream(OutputStream),
    File(OutputFile),
    Object(Arc<dyn Store>, Url),
}

impl Job {
    /// A job that nothing observes or interrupts, and that is saved after each part only.
    pub fn new(input: JobInput, output: JobOutput, model: Model, parameters: Parameters) -> Self {
        let (watcher, existing) = (Arc::new(()), Existing::default());
        Self {
            input,
            output,
            model: Box::new(model),
            parameters: Box::new(parameters),
            requests: None,
            watcher,
            until: None,
            interval: Duration::MAX,
            existing,
            sink: None,
            parquet: Parquet::default(),
            trace: None,
        }
    }

    /// Runs or resumes the job.
    ///
    /// An unusable input does not return an error, but a report with [`Status::Failed`], since another
    /// run would fail too.
    pub fn run(self) -> LocalBoxFuture<'static, Result<Ended>> {
        self.run_until(pending())
    }

    /// Runs the job until it ends or `stop` completes; then, finished rows are saved. Predictions may continue in the
    /// background, without effect.
    pub fn run_until<'a>(
        self,
        stop: impl Future<Output = ()> + 'a,
    ) -> LocalBoxFuture<'a, Result<Ended>> {
        self.begin_and_work(Box::pin(stop), None)
    }

    /// Runs the job with answers that are known.
    pub fn join(self, parts: Parts) -> LocalBoxFuture<'static, Result<Ended>> {
        self.begin_and_work(Box::pin(pending()), Some(parts))
    }

    fn begin_and_work(
        self,
        stop: LocalBoxFuture<'_, ()>,
        parts: Option<Parts>,
    ) -> LocalBoxFuture<'_, Result<Ended>> {
        Box::pin(async move {
            let ([model, _, task], record) = (self.model(), JobRecord::begin(self.trace.as_ref()));
            let ended = self.run_or_stop(stop, parts).await;
            record.end(&outcome(model, task, &ended));
            ended
        })
    }

    async fn run_or_stop(
        self,
        mut stop: LocalBoxFuture<'_, ()>,
        parts: Option<Parts>,
    ) -> Result<Ended> {
        let job = self.clone();
        // A FIFO blocks until its other end is opened.
        let begun = tokio::task::spawn_blocking(move || job.begin());
        let begun = tokio::select! {
            biased;
            begun = begun => begun.map_err(|_| panicked())??,
            () = &mut stop => return Ok(Ended::Unfinished(Progress::default())),
        };
        match begun {
            ControlFlow::Break(ended) => Ok(ended),
            ControlFlow::Continue(ready) => self.work(ready, stop, parts).await,
        }
    }

    /// Whether the job can resume: its input can be read again, and its output is not a stream.
    pub fn is_resumable(&self) -> bool {
        let is_rereadable = match &self.input {
            JobInput::File(path) => {
                fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
            }
            JobInput::Stdin => false,
            JobInput::Object(..) => true,
        };
        is_rereadable && self.output.stream().is_none()
    }

    /// Everything before the first row that is not done.
    fn begin(&self) -> Result<ControlFlow<Ended, Ready>> {
        let destination = self.destination()?;
        let opened = match catch_panic(|| self.open()) {
            Ok(opened) => opened,
            Err(error) => return self.refuse(error).map(ControlFlow::Break),
        };
        let version = opened.input.version();
        let is_resumable = version.is_some();
        let id = self.id(version, opened.format.0)?;
        let checkpoint = match destination {
            Destination::Stream(stream) => {
                let Opened {
                    answerer,
                    input,
                    table: Table { rows, shape, notes },
                    sink,
                    ..
                } = opened;
                let (target, pieces) = (Target::Stream(stream.open()?), Pieces::new(shape));
                let (progress, column) = (Progress::default(), rows.reader.column().to_owned());
                let writer = Writer {
                    target,
                    pieces,
                    progress,
                    notes,
                    column,
                    is_resumable,
                    sink,
                    published: None,
                };
                self.watcher.begin(&self.input.to_string(), 0);
                return Ok(ControlFlow::Continue(Ready {
                    answerer,
                    input,
                    rows,
                    writer,
                }));
            }
            Destination::File(output) => {
                local_storage::claim(output, &id, is_resumable, self.interval)?
            }
            Destination::Object(store, url) => {
                match s3_storage::claim(
                    &store,
                    &url,
                    &self.input,
                    &id,
                    self.interval,
                    self.existing,
                ) {
                    Ok(None) => return Ok(ControlFlow::Break(Ended::Known)),
                    Ok(Some(checkpoint)) => checkpoint,
                    // Reported as a failure if a repeated event would fail too.
                    Err(error) => return self.fail(error).map(ControlFlow::Break),
                }
            }
        };
        self.resume(opened, checkpoint)
    }

    /// Continues a claimed job after its last row that is done.
    fn resume(
        &self,
        opened: Opened,
        mut checkpoint: Box<Checkpoint>,
    ) -> Result<ControlFlow<Ended, Ready>> {
        let Opened {
            answerer,
            input,
            format,
            table,
            mut sink,
        } = opened;
        let mut published = self.published(&checkpoint.state);
        let Table { rows, shape, notes } = match catch_panic(|| {
            self.skip_done(
                &mut checkpoint.state,
                (&input, format),
                table,
                sink.as_mut(),
            )
        }) {
            Err(error) if is_final(&error) => {
                checkpoint.abandon()?;
                if let Some(published) = &mut published {
                    published.end();
                }
                return self.fail(error).map(ControlFlow::Break);
            }
            table => table?,
        };
        let (progress, is_whole) = (checkpoint.state.progress.clone(), checkpoint.state.is_whole);
        let done = progress.rows;
        let pieces = if done > 0 {
            Pieces::resumed(
                shape,
                checkpoint.waiting.clone(),
                checkpoint.state.footers.clone(),
            )
            .with_placeholders(&checkpoint.state.placeholders)?
        } else {
            Pieces::new(shape)
        };
        if is_whole {
            checkpoint.complete()?;
        }
        let (target, column) = (
            Target::Checkpoint(checkpoint),
            rows.reader.column().to_owned(),
        );
        let writer = Writer {
            target,
            pieces,
            progress,
            notes,
            column,
            is_resumable: input.version().is_some(),
            sink,
            published,
        };
        if is_whole {
            return self.done(writer).map(ControlFlow::Break);
        }
        self.watcher.begin(&self.input.to_string(), done);
        self.watcher.advance(done, rows.share());
        Ok(ControlFlow::Continue(Ready {
            answerer,
            input,
            rows,
            writer,
        }))
    }

    /// Skips the rows that are done, in the layout in which they were read.
    fn skip_done(
        &self,
        state: &mut State,
        (input, format): (&OpenInput, (Format, Compression)),
        mut table: Table,
        sink: Option<&mut SinkWriter>,
    ) -> Result<Table> {
        let layout = table.rows.reader.layout();
        match &state.layout {
            // Another version may detect a different layout.
            Some(saved) if *saved != layout => {
                table = self.table(input, format, saved, Arc::clone(&table.shape.columns))?
            }
            _ => state.layout = Some(layout),
        }
        match sink {
            _ if state.is_whole => {}
            Some(sink) => sink.skip(table.rows.reader.as_mut(), state.progress.rows)?,
            None => table.rows.reader.skip(state.progress.rows)?,
        }
        Ok(table)
    }

    fn open(&self) -> Result<Opened> {
        let input = OpenInput::new(&self.input)?;
        let layout = self.parameters.layout();
        let (format, compression) = input.format(self.parameters.format, &layout)?;
        let answerer = match format {
            Format::OpenAi => Answerer::Requests(self.responder()?),
            _ => Answerer::Model(Box::new(Predictor::new(&self.model, &self.parameters)?)),
        };
        let columns = if self.sink.is_some() {
            [].into()
        } else {
            answerer.columns()
        };
        let table = self.table(&input, (format, compression), &layout, columns)?;
        let sink = self.connect(&answerer, &table)?;
        Ok(Opened {
            answerer,
            input,
            format: (format, compression),
            table,
            sink,
        })
    }

    /// Answers rows that are requests, which have their parameters themselves.
    fn responder(&self) -> Result<Arc<dyn Respond>> {
        let Some(Requests { limits, responder }) = &self.requests else {
            return Err(
                Error::config("OpenAI's batch requests are not supported here")
                    .with_hint("use `kivu batch` or an upload"),
            );
        };
        let parameters = Parameters {
            model: self.parameters.model.clone(),
            format: self.parameters.format,
            ..Parameters::default()
        };
        if self.sink.is_some() || *self.parameters != parameters {
            return Err(
                Error::config("rows that are requests have their parameters in `body`")
                    .with_hint("omit the column, the task's options and the database"),
            );
        }
        Ok(responder(&self.model, limits))
    }

    /// Connects to the sink, if the job has one.
    fn connect(&self, answerer: &Answerer, table: &Table) -> Result<Option<SinkWriter>> {
        let (Some(settings), Answerer::Model(predictor)) = (&self.sink, answerer) else {
            return Ok(None);
        };
        let dimensions = predictor.stored_dimensions()?;
        SinkWriter::connect(settings, dimensions, &table.shape.head).map(Some)
    }

    /// Rows in `input`, and an output in the form that its name selects.
    fn table(
        &self,
        input: &OpenInput,
        format: (Format, Compression),
        layout: &Layout,
        columns: Columns,
    ) -> Result<Table> {
        let gauge = BytesRead::default();
        let (form, note) = OutputForm::of(
            &self.output.to_string(),
            &self.input.to_string(),
            format.0,
            format.1,
        )?;
        let reader = match format {
            (Format::Text, packed) => Box::new(TextReader::new(
                input.unpacked(packed, &gauge)?,
                form.delimiter,
            )?),
            _ => open_rows(input, format, layout, &gauge, self.parquet)?,
        };
        let shape = Shape::of(reader.as_ref(), form, columns);
        // The output may need a codec that this build lacks.
        shape.compression.pack()?;
        let unused = (shape.format() != Format::Csv && layout.csv != CsvOptions::default())
            .then(|| format!("the options for CSV have no effect on {}", shape.format()));
        let notes = note
            .into_iter()
            .chain(unused)
            .chain(reader.notes().iter().cloned())
            .collect();
        Ok(Table {
            rows: RowInput {
                reader,
                gauge,
                size: input.size(),
            },
            shape,
            notes,
        })
    }

    fn destination(&self) -> Result<Destination> {
        if let Some(stream) = self.output.stream() {
            return Ok(Destination::Stream(stream));
        }
        match &self.output {
            JobOutput::Stdout => Ok(Destination::Stream(OutputStream::Stdout)),
            JobOutput::File(path) => {
                let output = OutputFile::new(path, &self.input, self.existing)?;
                if !self.existing.overwrite {
                    let sink = self.sink.as_ref().map(|sink| sink.url.to_string());
                    report_file::check_failed_rows(path, sink.as_deref())?;
                }
                Ok(Destination::File(output))
            }
            JobOutput::Object(store, url) => {
                if url.key.is_empty() || url.key.ends_with('/') {
                    return Err(Error::config(format!(
                        "expected an object key for the output, but found the prefix `{url}`"
                    )));
                }
                if matches!(&self.input, JobInput::Object(_, input, _) if input == url) {
                    return Err(Error::config(format!(
                        "the output would overwrite the input `{url}`"
                    )));
                }
                report_file::check_object(store, &report_file::url_of(url))?;
                Ok(Destination::Object(Arc::clone(store), url.clone()))
            }
        }
    }

    /// Processes rows until the input or the time ends, or until the job is stopped.
    async fn work(
        self,
        ready: Ready,
        stop: LocalBoxFuture<'_, ()>,
        parts: Option<Parts>,
    ) -> Result<Ended> {
        let Ready {
            answerer,
            input,
            rows,
            writer,
        } = ready;
        let progress = writer.progress.clone();
        let gauge = rows.gauge.clone();
        let predict = async |row, texts| match &parts {
            Some(parts) => parts.answers(row, texts),
            None => answerer.answer(texts).await,
        };
        let processed = process(
            rows,
            predict,
            writer,
            Arc::clone(&self.watcher),
            self.until,
            stop,
        )
        .await?;
        let (mut writer, mut end) = match processed {
            Ok(processed) => processed,
            Err(rows) => return Ok(Ended::Unfinished(Progress { rows, ..progress })),
        };
        let mut is_changed = false;
        if matches!(end, End::Input) {
            match blocking(move || input.is_changed(&gauge)).await {
                Ok(found) => is_changed = found,
                Err(error) => end = End::Rows(error),
            }
        }
        match end {
            End::Input => {}
            End::Stopped => {
                return blocking(move || writer.pause())
                    .await
                    .map(Ended::Unfinished);
            }
            End::Output(error) => {
                // The next run resumes at the last save.
                writer.abandon_unresumable()?;
                return Err(error);
            }
            End::Rows(error) if is_final(&error) => {
                if let Target::Checkpoint(checkpoint) = &writer.target {
                    checkpoint.abandon()?;
                }
                blocking(move || {
                    writer.end_progress();
                    Ok(())
                })
                .await?;
                return self.fail(error);
            }
            End::Rows(error) => {
                blocking(move || writer.pause()).await?;
                return Err(error);
            }
        }
        let finished = blocking(move || {
            let started = Instant::now();
            if is_changed {
                writer
                    .notes
                    .push("the input was changed while it was read".to_owned());
            }
            if let Err(error) = writer.finish() {
                // The job was abandoned.
                if Change::of(&error).is_some() {
                    writer.end_progress();
                }
                return Err(error);
            }
            writer.progress.seconds += started.elapsed().as_secs_f64();
            Ok::<_, Error>(writer)
        });
        self.done(finished.await?)
    }

    /// Writes the report for a complete output, and deletes its checkpoint.
    fn done(&self, mut writer: Writer) -> Result<Ended> {
        let progress = mem::take(&mut writer.progress);
        let mut report = self.report(Status::Finished, None, progress);
        report.notes = mem::take(&mut writer.notes);
        report.text_column =
            Some(mem::take(&mut writer.column)).filter(|column| !column.is_empty());
        if let Target::Checkpoint(checkpoint) = &writer.target {
            report.output_digest.clone_from(&checkpoint.state.digest);
            self.write_report(&report)?;
            checkpoint.forget()?;
        }
        writer.end_progress();
        Ok(Ended::Done(Box::new(report)))
    }

    /// Ends a job before its first row. Whoever runs it on local files sees the error, so no report is left next to them.
    fn refuse(&self, error: Error) -> Result<Ended> {
        match &self.output {
            JobOutput::File(_) if is_permanent(&error) => {
                let report = self.report(Status::Failed, Some(&error), Progress::default());
                Ok(Ended::Done(Box::new(report)))
            }
            _ => self.fail(error),
        }
    }

    /// Writes the report for a job that failed permanently; other errors are returned.
    pub fn fail(&self, error: Error) -> Result<Ended> {
        if !is_permanent(&error) {
            return Err(error);
        }
        // Otherwise, the report would replace that of the newer object.
        if matches!(self.output, JobOutput::Object(..)) {
            self.input.check_current()?;
        }
        let mut report = self.report(Status::Failed, Some(&error), Progress::default());
        // A later job may still replace an earlier one's output.
        report.output_digest = match &self.output {
            JobOutput::File(path) => report_file::known_digest(path),
            JobOutput::Stdout | JobOutput::Object(..) => None,
        };
        self.write_report(&report)?;
        Ok(Ended::Done(Box::new(report)))
    }

    /// The job's report with this progress, without output digest, text column or notes.
    pub fn report(&self, status: Status, error: Option<&Error>, progress: Progress) -> Report {
        let [model, model_digest, task] = self.model();
        Report {
            status,
            error: error.map(Error::chain),
            failure: error.map(Error::with_causes),
            input: self.input.to_string(),
            version: self.object_version(),
            output: self.output.to_string(),
            sink: self.sink.as_ref().map(|sink| sink.url.to_string()),
            model,
            model_digest,
            task,
            output_digest: None,
            text_column: None,
            notes: Vec::new(),
            progress,
        }
    }

    /// An input object's version, or its ETag.
    fn object_version(&self) -> Option<String> {
        match &self.input {
            JobInput::File(_) | JobInput::Stdin => None,
            JobInput::Object(_, _, object) => Some(
                object
                    .version
                    .clone()
                    .unwrap_or_else(|| object.etag.clone()),
            ),
        }
    }

    /// Where a claimed job's progress is published; `None` for local outputs.
    fn published(&self, state: &State) -> Option<ProgressObject> {
        let JobOutput::Object(store, url) = &self.output else {
            return None;
        };
        let facts = JobFacts {
            input: self.input.to_string(),
            version: self.object_version(),
            model: self.model.name.clone(),
        };
        Some(ProgressObject::new(store, url, state, facts, self.interval))
    }

    /// The model's name, digest and task.
    fn model(&self) -> [String; 3] {
        [
            self.model.name.clone(),
            self.model.digest.clone(),
            self.model.manifest.task.to_string(),
        ]
    }

    /// Writes the report next to the output; none for a stream.
    pub fn write_report(&self, report: &Report) -> Result<()> {
        report_file::write(&self.output, report, self.existing)
    }

    /// Identifies the job, whose input has this format and version; `None` for a stream.
    pub fn id(&self, version: Option<String>, format: Format) -> Result<String> {
        let identity = Identity::new(version, &self.model, &self.parameters, self.sink.as_ref());
        match &self.requests {
            Some(requests) if format == Format::OpenAi => identity.with_limits(&requests.limits),
            _ => identity,
        }
        .digest()
    }
}

/// Runs work that may block, as an output's last write.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| panicked())?
}

/// How a run ended, for its span.
fn outcome(model: String, task: String, ended: &Result<Ended>) -> JobOutcome {
    let none = Progress::default();
    let (status, progress) = match ended {
        Ok(Ended::Done(report)) => match report.status {
            Status::Finished => ("finished", &report.progress),
            Status::Failed => ("failed", &report.progress),
        },
        Ok(Ended::Known) => ("known", &none),
        Ok(Ended::Unfinished(progress)) => ("unfinished", progress),
        Err(_) => ("error", &none),
    };
    let (rows, tokens) = (progress.rows, progress.tokens);
    JobOutcome {
        model,
        task,
        status,
        rows,
        failed_rows: progress.errors.values().sum(),
        tokens,
    }
}

/// The error that makes the sender repeat an event.
pub fn unfinished(url: &Url) -> Error {
    let action = format!("`{url}` was not done in time");
    Error::io(action)(io::Error::new(io::ErrorKind::TimedOut, "time is up"))
        .with_hint("the next run resumes it")
}

/// Whether no other run can resume the job after this error.
fn is_final(error: &Error) -> bool {
    is_permanent(error) || Change::of(error).is_some()
}

/// Whether another run would end with the same error.
pub fn is_permanent(error: &Error) -> bool {
    matches!(
        error,
        Error::Malformed { .. }
            | Error::Invalid { .. }
            | Error::TooLarge { .. }
            | Error::Config { .. }
            | Error::UnknownModel { .. }
            | Error::NoModel
    )
}
