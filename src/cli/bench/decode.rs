//! Writing tokens: the loop with its search, against the decoder's session alone.

use std::{
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{Figure, Target, median};
use crate::{
    backend::{
        Deadline,
        seq2seq::{Decoder, Seq2SeqBackend},
    },
    config::Config,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        generation::{GenerationOptions, SourceInfo, generate},
        translation::{Decoding, TranslationOptions},
    },
};

/// The text that is translated, in any language: what comes of it is not looked at.
const TEXT: &str = "The next train leaves from platform four at half past nine, so please be there on time.";
/// The tokens that are written of it.
const TOKENS: usize = 32;
/// How often each side is measured; the first rounds warm both up.
const ROUNDS: usize = 24;
const WARM_UP: usize = 4;

/// Tokens a second of the loop and of the session alone, with one row and with five beams.
pub(super) fn measure(bundle: &Path, config: &Config) -> Result<Vec<Figure>> {
    let models = vec![bundle.to_owned().into()];
    let models = Model::open_all(&Config { models, ..config.clone() })?;
    let Some(Pipeline::Translation(pipeline)) = models.first().map(|model| &model.pipeline) else {
        return Err(Error::config(format!(
            "expected a bundle that translates in `{}`, but found one for another task",
            bundle.display()
        )));
    };
    let waiting = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let waiting = waiting.map_err(Error::io("cannot start a runtime to wait with"))?;
    let languages = pipeline.directions().some_pair();
    let mut figures = Vec::new();
    for (name, beams) in
        [("decoding, 1 row | its session alone", 1), ("decoding, 5 beams | its session alone", 5)]
    {
        let generation = GenerationOptions {
            num_beams: Some(beams),
            min_new_tokens: Some(TOKENS),
            max_new_tokens: Some(TOKENS),
            ..GenerationOptions::default()
        };
        let options = TranslationOptions {
            source: Some(languages.source.clone()),
            target: Some(languages.target.clone()),
            split: None,
            truncate: true,
            clean_up_spaces: false,
            generation,
            max_sentences: 1,
        };
        let decoding = pipeline.decoding_of(TEXT, &options)?;
        let missing = || Error::config("expected a model that runs here, but found one on a fleet");
        let sequences = pipeline.sequences().ok_or_else(missing)?.as_ref();
        let (mut looped, mut alone) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let (of_loop, tokens) = waiting.block_on(run(sequences, &decoding, Side::Loop))?;
            let again = Side::Session { tokens, rows: beams };
            let (of_session, _) = waiting.block_on(run(sequences, &decoding, again))?;
            if round >= WARM_UP {
                looped.push(rate(of_loop));
                alone.push(rate(of_session));
            }
        }
        figures.push(Figure::new(name, "tok/s", [median(looped), median(alone)], Target::AtLeast(0.95)));
    }
    Ok(figures)
}

/// What is measured.
enum Side {
    /// The whole loop.
    Loop,
    /// The same tokens in as many rows, their scores not looked at.
    Session { tokens: Vec<i64>, rows: usize },
}

/// The time that the steps take, without the encoder's, and the tokens that were fed.
async fn run(
    sequences: &dyn Seq2SeqBackend,
    decoding: &Decoding,
    side: Side,
) -> Result<(Duration, Vec<i64>)> {
    let (sender, receiver) = mpsc::channel();
    let Decoding { sources, search } = decoding.clone();
    let source = SourceInfo { length: sources.rows.first().map_or(0, Vec::len), number: 0 };
    let deadline = Deadline::within(Duration::from_secs(60));
    let work = Box::new(move |decoder: &mut dyn Decoder| {
        let started = Instant::now();
        let tokens = match side {
            Side::Loop => {
                let best = generate(decoder, &[source], &search, deadline)?.into_iter().flatten().next();
                let written = best.map(|best| best.ids).unwrap_or_default();
                std::iter::once(search.start()).chain(written).take(TOKENS).collect()
            }
            Side::Session { tokens, rows } => {
                // All rows begin as one, as they do in the loop.
                let mut count = 1;
                for token in &tokens {
                    decoder.step(&vec![*token; count])?;
                    if count < rows {
                        decoder.reorder(&vec![0; rows])?;
                        count = rows;
                    }
                }
                tokens
            }
        };
        // Who measures waits for it.
        let _ = sender.send((started.elapsed(), tokens));
        Ok(())
    });
    sequences.decode(sources, deadline, work).await?;
    receiver.recv().map_err(|_| Error::Inference { message: "the measurement was lost".into(), source: None })
}

fn rate(time: Duration) -> f64 {
    TOKENS as f64 / time.as_secs_f64()
}
