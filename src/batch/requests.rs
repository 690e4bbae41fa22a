//! Jobs whose rows are requests.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream};

use super::{
    answer::{Answer, Answers, Cell, Columns, ErrorKind, RowError},
    compression::Compression,
    format::Format,
    input::{Gauge, OpenInput},
    location::JobInput,
    predictor::Predictor,
    rows::RequestReader,
};
use crate::error::{Error, Result};

/// Requests that are processed at once, within a chunk of rows.
const AT_ONCE: usize = 8;

/// Responds to requests, each a line of a file.
#[async_trait]
pub trait Respond: Debug + Send + Sync {
    /// Responds to a line. An error is a response too.
    async fn respond(&self, line: String) -> LineResponse;
}

/// A response, as a line without its end.
#[derive(Clone, Debug)]
pub struct LineResponse {
    /// The line.
    pub line: String,
    /// Whether the request failed.
    pub is_failed: bool,
    /// Input tokens.
    pub tokens: u64,
}

/// A file's requests.
pub struct RequestLines(pub(super) RequestReader);

impl RequestLines {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or compressed file.
    pub fn open(input: &JobInput) -> Result<Self> {
        Self::read(&OpenInput::new(input)?, &Gauge::default())
    }

    pub(super) fn read(input: &OpenInput, gauge: &Gauge) -> Result<Self> {
        let (_, compression) = input.format(Some(Format::JsonLines))?;
        if compression != Compression::None {
            return Err(Error::invalid(
                "expected JSON Lines, but found a compressed file; unpack it",
            ));
        }
        Ok(Self(RequestReader::new(
            input.unpacked(compression, gauge)?,
        )))
    }

    /// The next request that is not an empty line; `None` at the end.
    pub fn request(&mut self) -> Result<Option<String>> {
        self.0.request()
    }
}

/// Computes rows' answers.
#[derive(Debug)]
pub(super) enum Answerer {
    Model(Box<Predictor>),
    Requests(Arc<dyn Respond>),
}

impl Answerer {
    pub(super) fn columns(&self) -> Columns {
        match self {
            Self::Model(predictor) => predictor.columns(),
            Self::Requests(_) => [].into(),
        }
    }

    pub(super) async fn answer(&self, texts: Vec<Result<String, RowError>>) -> Result<Answers> {
        match self {
            Self::Model(predictor) => predictor.predict(texts).await,
            Self::Requests(responder) => Ok(respond(responder.as_ref(), texts).await),
        }
    }
}

async fn respond(responder: &dyn Respond, lines: Vec<Result<String, RowError>>) -> Answers {
    let lines = lines
        .into_iter()
        .flatten()
        .map(|line| responder.respond(line));
    let responses: Vec<LineResponse> = stream::iter(lines).buffered(AT_ONCE).collect().await;
    let mut answers = Answers::default();
    for LineResponse {
        line,
        is_failed,
        tokens,
    } in responses
    {
        answers.tokens += tokens;
        answers.results.push(match is_failed {
            false => Ok(Answer::from([Cell::Text(line.into())])),
            true => Err(RowError {
                response: Some(line),
                ..RowError::new(ErrorKind::Input, "the response has an error")
            }),
        });
    }
    answers
}
