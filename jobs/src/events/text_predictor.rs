//! A model with a job's parameters for texts that are not in a file.

use std::collections::BTreeSet;

use futures::future::BoxFuture;

use crate::{
    job::{parameters::Parameters, predictor::Predictor},
    output::answer::{Answer, Cell, Columns, RowResult},
    rows::write_line,
};
use kivu::{Error, Result, model::Model};

/// Runs a model on texts, with a job's parameters and results.
#[derive(Clone, Debug)]
pub struct TextPredictor {
    predictor: Predictor,
    columns: Columns,
}

/// Results of texts.
#[derive(Debug)]
pub struct Predictions {
    /// In the order of the texts.
    pub results: Vec<Result<Prediction>>,
    /// Texts that were truncated.
    pub truncated: u64,
}

/// A text's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The object that a JSON Lines job adds to the text's row.
    pub json: String,
    /// The generated text, if the model generates one.
    pub text: Option<String>,
    /// The text's score, if the model ranks.
    pub score: Option<f32>,
}

impl TextPredictor {
    /// Checks that the model supports the parameters.
    pub fn new(model: &Model, parameters: &Parameters) -> Result<Self> {
        let predictor = Predictor::of_list(model, parameters)?;
        Ok(Self {
            columns: predictor.columns(),
            predictor,
        })
    }

    /// Runs the model; a text that fails does not affect the others.
    pub fn predict(&self, texts: Vec<String>) -> BoxFuture<'_, Result<Predictions>> {
        Box::pin(async move {
            let answers = self
                .predictor
                .predict(texts.into_iter().map(Ok).collect())
                .await?;
            let results = answers.results.into_iter();
            Ok(Predictions {
                results: results.map(|result| self.prediction(result)).collect(),
                truncated: answers.truncated,
            })
        })
    }

    fn prediction(&self, result: RowResult) -> Result<Prediction> {
        let answer = result.map_err(|error| Error::invalid(error.message))?;
        let text = self.generated(&answer);
        let score = self.score(&answer);
        let mut line = Vec::new();
        write_line(
            &mut line,
            b"{}",
            &self.columns,
            &Ok(answer),
            &mut BTreeSet::new(),
        )
        .map_err(Error::io("cannot write a result"))?;
        Ok(Prediction {
            json: String::from_utf8_lossy(&line).trim_end().to_owned(),
            text,
            score,
        })
    }

    fn generated(&self, answer: &Answer) -> Option<String> {
        match (&self.predictor, answer.as_slice()) {
            (Predictor::TextToText(..), [Cell::Text(text)]) => Some(text.to_string()),
            _ => None,
        }
    }

    fn score(&self, answer: &Answer) -> Option<f32> {
        match (&self.predictor, answer.as_slice()) {
            (Predictor::Ranking(..), [Cell::Number(score)]) => Some(*score),
            _ => None,
        }
    }
}
