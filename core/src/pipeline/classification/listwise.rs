//! A query and all texts in one prompt to a score per text (jina-reranker-v3): the cosine between projected vectors of the
//! markers after each text and after the query. A score depends on the other texts.

use std::{fmt::Write, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    backend::{Deadline, routing::Route},
    pipeline::{
        embedding::similarity::cosine,
        encoder::{Encoder, Granularity, NamedOutput, Row, Vectors, usage::Usage},
    },
};
use kivu_base::{
    Error, Result,
    error::{at_text, quoted},
};
use kivu_text::{Encoding, Tokenizer, Truncation, reach};

/// The tokens after the query and after each text.
pub const MARKERS: [&str; 2] = ["<|rerank_token|>", "<|embed_token|>"];

const BEFORE: &str = include_str!("listwise-prompt.txt");
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Settings of a model that reads a query and all texts in one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListwiseSettings {
    /// Output name; one vector per token.
    pub output: String,
    /// Values per vector.
    pub dimensions: usize,
    /// Maximum tokens of a prompt's texts and twice its query.
    pub max_tokens: usize,
    /// Maximum tokens per query.
    pub max_query_tokens: usize,
    /// Maximum tokens per text. A prompt with less room left takes no further text.
    pub max_text_tokens: usize,
    /// Maximum texts per prompt.
    pub max_texts: usize,
}

/// A model that reads a query and all texts in one prompt.
#[derive(Clone, Debug)]
pub struct ListwisePipeline {
    encoder: Encoder,
    settings: Arc<ListwiseSettings>,
    markers: [u32; 2],
    instruction: String,
}

impl ListwisePipeline {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: ListwiseSettings,
    ) -> Result<Self> {
        let [query, text] = MARKERS.map(|marker| {
            let missing = || Error::model(format!("expected the token `{marker}`, but found none"));
            tokenizer.id(marker).ok_or_else(missing)
        });
        let output = vec![NamedOutput {
            name: settings.output.clone(),
            width: settings.dimensions,
            vectors: Vectors::PerToken,
        }];
        Ok(Self {
            markers: [query?, text?],
            encoder: Encoder::new(tokenizer, route.into(), output, None, settings.max_tokens)?,
            settings: settings.into(),
            instruction: String::new(),
        })
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &ListwiseSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The same model with an instruction in its prompt.
    pub fn with_instruction(&self, instruction: &str) -> Self {
        Self {
            instruction: format!("<instruct>\n{instruction}\n</instruct>\n"),
            ..self.clone()
        }
    }

    /// Cosines in text order.
    pub async fn score(
        &self,
        query: String,
        texts: Vec<String>,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        let (own, width) = (self.clone(), self.settings.dimensions);
        let reach = reach(self.settings.max_text_tokens);
        let size = query.len()
            + texts
                .iter()
                .map(|text| text.len().min(reach))
                .sum::<usize>();
        let (prompts, truncated) = self
            .encoder
            .input_tokenizer(deadline)
            .await?
            .encode_prompts(size, move |tokenizer| {
                own.prompts(tokenizer, &query, &texts, truncation, deadline)
            })
            .await?;
        let marked = |prompt: usize, rows: &[Row<'_>]| -> Vec<f32> {
            let tokens = prompts.ids(prompt).iter();
            let vectors = tokens.zip(rows[0].values.chunks_exact(width));
            let marked = vectors.filter(|(id, _)| self.markers.contains(id));
            marked.flat_map(|(_, vector)| vector).copied().collect()
        };
        self.encoder.require_token_vectors(deadline).await?;
        let (vectors, usage) = self
            .encoder
            .run_all(&prompts, Granularity::Tokens, deadline, marked)
            .await?;
        Ok((scores(&vectors, width), Usage { truncated, ..usage }))
    }

    /// The prompts, divided as the authors' code does, and the indexes of truncated texts.
    fn prompts(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        texts: &[String],
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<(Vec<Encoding>, Vec<usize>)> {
        let ListwiseSettings {
            max_tokens,
            max_query_tokens,
            max_text_tokens,
            max_texts,
            ..
        } = *self.settings;
        let read = |text: &str, limit: usize| {
            shortened(tokenizer, text, limit.min(max_tokens), truncation)
        };
        let query = read(query, max_query_tokens).map_err(|error| error.at("query"))?;
        let room = max_tokens.saturating_sub(2 * query.tokens);
        let (mut prompts, mut truncated, mut block, mut left) = (vec![], vec![], vec![], room);
        for (index, text) in texts.iter().enumerate() {
            if deadline.has_passed() {
                return Err(deadline.exceeded());
            }
            let text =
                read(text, max_text_tokens).map_err(|error| at_text(error, index, texts.len()))?;
            if text.is_truncated || query.is_truncated {
                truncated.push(index);
            }
            left = left.saturating_sub(text.tokens);
            block.push(text.text);
            if block.len() == max_texts || left <= max_text_tokens || index + 1 == texts.len() {
                prompts.push(self.prompt(tokenizer, &query.text, &block)?);
                block.clear();
                left = room;
            }
        }
        Ok((prompts, truncated))
    }

    fn prompt(&self, tokenizer: &Tokenizer, query: &str, texts: &[String]) -> Result<Encoding> {
        let ([of_query, of_text], count) = (MARKERS, texts.len());
        let mut prompt = format!(
            "{BEFORE}I will provide you with {count} passages, each indicated by a numerical identifier. Rank the passages \
             based on their relevance to query: {query}\n{}",
            self.instruction
        );
        for (id, text) in texts.iter().enumerate() {
            let _ = writeln!(prompt, "<passage id=\"{id}\">\n{text}{of_text}\n</passage>");
        }
        let _ = write!(prompt, "<query>\n{query}{of_query}\n</query>{AFTER}");
        let encoding = tokenizer.encode(&prompt, usize::MAX, Truncation::Off)?;
        let found = self
            .markers
            .map(|marker| encoding.ids.iter().filter(|id| **id == marker).count());
        if found != [1, count] {
            return Err(Error::invalid(format!(
                "the query, the instruction or a text contains {}, which the model reads as its own",
                quoted(&MARKERS)
            ))
            .with_hint("remove these tokens"));
        }
        Ok(encoding)
    }
}

/// A text as a prompt contains it.
struct Shortened {
    text: String,
    tokens: usize,
    is_truncated: bool,
}

/// A text of at most `limit` tokens, without markers. A text with `limit` tokens or more is decoded from its tokens.
fn shortened(
    tokenizer: &Tokenizer,
    text: &str,
    limit: usize,
    truncation: Truncation,
) -> Result<Shortened> {
    let encoding = tokenizer.encode(text, limit, truncation)?;
    let text = match encoding.len() < limit {
        true => text.to_owned(),
        false => tokenizer.decode(&encoding.ids, false)?,
    };
    Ok(Shortened {
        text: MARKERS
            .iter()
            .fold(text, |text, marker| text.replace(marker, "")),
        tokens: encoding.len(),
        is_truncated: encoding.truncated_from.is_some(),
    })
}

/// The texts' cosines to the query. With several prompts, the query's vectors are averaged, weighted by each prompt's best
/// cosine as a number from 0 to 1; the average's length has no effect.
fn scores(prompts: &[Vec<f32>], width: usize) -> Vec<f32> {
    let mut average = vec![0.0; width];
    for (texts, query) in prompts.iter().map(|prompt| parts(prompt, width)) {
        let cosines = texts.chunks_exact(width).map(|text| cosine(text, query));
        let weight = (1.0 + cosines.fold(-1.0, f32::max)) / 2.0;
        for (sum, value) in average.iter_mut().zip(query) {
            *sum += weight * value;
        }
    }
    let texts = prompts.iter().map(|prompt| parts(prompt, width).0);
    let texts = texts.flat_map(|texts| texts.chunks_exact(width));
    texts.map(|text| cosine(text, &average)).collect()
}

/// A prompt's vectors: those of its texts, and the query's, which is last.
fn parts(prompt: &[f32], width: usize) -> (&[f32], &[f32]) {
    prompt.split_at(prompt.len() - width)
}
