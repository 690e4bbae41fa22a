//! Texts to entities, with the results of the `token-classification` pipeline in `transformers`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Aggregation, Entity, EntityCount, Grouping, IndexedText, ScoredToken, TextEntities,
    entity_group, resolve_overlaps,
    tags::{OUTSIDE, TagScheme, TransitionBiases},
};
use crate::backend::{Deadline, routing::Route};
use crate::pipeline::{
    classification::scores::softmax,
    encoder::{
        Encoder, Granularity, Logits, NamedOutput, Row, Vectors,
        encoding::{EncodedWindows, EncodingOptions, Input},
        usage::Usage,
    },
    redaction::{Redaction, Redactor},
};
use kivu_base::{Error, Result};
use kivu_text::{Tokenizer, Truncation, WindowOptions};

/// Token classification settings, from `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenClassificationSettings {
    /// Output name; one value per token and label.
    pub output: String,
    /// The labels, by id.
    pub labels: Vec<String>,
    /// Maximum tokens per text or window, special tokens included.
    pub max_tokens: usize,
    /// The token for unknown words, if it is neither `[UNK]` nor `<unk>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_token: Option<u32>,
    /// Tokens on either side on which a token's label depends; absent if it depends on the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
}

impl TokenClassificationSettings {
    /// The labels of entities, in order.
    pub fn entity_labels(&self) -> BTreeSet<&str> {
        let groups = self.labels.iter().map(|label| entity_group(label));
        groups.filter(|group| *group != OUTSIDE).collect()
    }
}

/// Request options.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenClassificationOptions {
    /// How token labels become entity labels.
    pub aggregation: Aggregation,
    /// Labels that are left out.
    pub ignored: BTreeSet<String>,
    /// How texts above the token limit are read.
    pub windows: WindowOptions,
    /// Patterns to find besides entities, and the style of replacements.
    pub redaction: Redaction,
    /// Biases for models whose labels mark ends of entities.
    pub transition_biases: TransitionBiases,
}

impl TokenClassificationOptions {
    /// Checks options; `None` selects the Hugging Face Hub's default.
    pub fn new(
        aggregation: Option<Aggregation>,
        ignored: Option<Vec<String>>,
        mut windows: WindowOptions,
        redaction: Redaction,
    ) -> Result<Self> {
        let aggregation = aggregation.unwrap_or_default();
        let redacts = redaction.replacement.is_some();
        let needs_entities = [
            ("stride", windows.stride.is_some()),
            ("redact", redacts),
            ("patterns", !redaction.patterns.is_empty()),
        ];
        if let Some((name, _)) = needs_entities.iter().find(|(_, is_set)| *is_set)
            && aggregation == Aggregation::None
        {
            return Err(Error::invalid(format!(
                "expected an aggregation strategy among `simple`, `first`, `average`, `max` with `{name}`, but found \
                 `none`"
            )));
        }
        if redacts {
            // The rest of a truncated text would be returned without redaction.
            windows.truncation = Truncation::Off;
            // A word cut by a window has less context that identifies it.
            windows.begin_at_words = true;
        }
        let ignored = ignored.unwrap_or_else(|| vec![OUTSIDE.to_owned()]);
        let ignored = ignored.into_iter().collect();
        Ok(Self {
            aggregation,
            ignored,
            windows,
            redaction,
            transition_biases: TransitionBiases::default(),
        })
    }
}

/// Entities found in a request's texts.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundEntities {
    /// In text order.
    pub texts: Vec<TextEntities>,
    /// Token counts and durations.
    pub usage: Usage,
}

/// A model that labels tokens.
#[derive(Clone, Debug)]
pub struct TokenClassificationPipeline {
    encoder: Encoder,
    settings: TokenClassificationSettings,
    labels: Arc<[Arc<str>]>,
    tags: Option<Arc<TagScheme>>,
}

impl TokenClassificationPipeline {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: TokenClassificationSettings,
    ) -> Result<Self> {
        let output = NamedOutput::of_labels(&settings.output, &settings.labels, Vectors::PerToken)?;
        let output = vec![output];
        let encoder = Encoder::new(tokenizer, route.into(), output, None, settings.max_tokens)?;
        let labels = settings
            .labels
            .iter()
            .map(|label| label.as_str().into())
            .collect();
        Ok(Self {
            encoder,
            tags: TagScheme::new(&settings.labels).map(Arc::new),
            settings,
            labels,
        })
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &TokenClassificationSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Adds a request's `biases` to its options.
    ///
    /// # Errors
    /// No labels of the model mark ends of entities, the options have another aggregation strategy than `simple`, or a bias is
    /// too large.
    pub fn with_biases(
        &self,
        options: TokenClassificationOptions,
        biases: Option<TransitionBiases>,
    ) -> Result<TokenClassificationOptions> {
        let Some(biases) = biases else {
            return Ok(options);
        };
        if self.tags.is_none() {
            return Err(Error::invalid(
                "`transition_biases` is not supported: the model's labels do not mark ends of entities with `E-` or `S-`",
            ));
        }
        if options.aggregation != Aggregation::Simple {
            return Err(Error::invalid(
                "`transition_biases` needs the aggregation strategy `simple`",
            ));
        }
        Ok(TokenClassificationOptions {
            transition_biases: biases.check()?,
            ..options
        })
    }

    /// Whether texts above the token limit are read in windows, since labels depend on the text around a token only.
    pub fn divides_texts(&self) -> bool {
        let shared = self
            .settings
            .context
            .map(|context| context.saturating_mul(2));
        shared.is_some_and(|shared| {
            shared
                < self
                    .encoder
                    .max_tokens()
                    .saturating_sub(self.special_count())
        })
    }

    fn special_count(&self) -> usize {
        self.encoder.tokenizer().special_count()
    }

    /// Entities per text, replaced by `redactor`.
    pub async fn entities(
        &self,
        texts: Vec<String>,
        options: &TokenClassificationOptions,
        redactor: &mut Redactor<'_>,
        deadline: Deadline,
    ) -> Result<FoundEntities> {
        let texts: Arc<[String]> = texts.into();
        let mut tokenizer = self.encoder.input_tokenizer(deadline).await?;
        // Texts of which all is read are divided where that changes no label.
        let is_whole =
            options.windows.stride.is_none() && options.windows.truncation == Truncation::Off;
        let context = self
            .settings
            .context
            .filter(|_| is_whole && self.divides_texts());
        let mut window_options = options.windows;
        if let Some(context) = context {
            tokenizer.limit = tokenizer
                .limit
                .min(WINDOW_CONTEXTS * context + self.special_count());
            window_options.stride = Some(2 * context);
            window_options.begin_at_words = false;
        }
        let windows = tokenizer.encode_windows(&texts, window_options).await?;
        let indexed: Vec<IndexedText<'_>> =
            texts.iter().map(|text| IndexedText::new(text)).collect();
        let grouping = Grouping {
            tokenizer: self.encoder.tokenizer(),
            labels: &self.labels,
            aggregation: options.aggregation,
            ignored: &options.ignored,
            unknown_token: self
                .settings
                .unknown_token
                .or(self.encoder.tokenizer().unknown_id()),
            tags: self
                .tags
                .as_ref()
                .map(|tags| (&**tags, options.transition_biases)),
        };
        let count = EntityCount::default();
        let finish = |window: usize, rows: &[Row<'_>]| {
            let place = windows.places[window].text;
            let tokens = scored_tokens(&windows, window, rows[0]);
            let is_same =
                |other: usize| windows.places.get(other).is_some_and(|it| it.text == place);
            let [before, after] = [window.wrapping_sub(1), window + 1].map(is_same);
            if let Some(context) = context
                && (before || after)
            {
                // The others are decided in the neighbouring windows, where they have their context.
                let tokens: Vec<_> = tokens.collect();
                let end = tokens.len().saturating_sub(if after { context } else { 0 });
                let own = tokens
                    .into_iter()
                    .take(end)
                    .skip(if before { context } else { 0 });
                return Ok(Found::Part(own.collect()));
            }
            let entities = grouping.entities(&indexed[place], tokens)?;
            count.add(entities).map(Found::Entities)
        };
        let (found, usage) = self
            .encoder
            .run_all(&windows.encodings, Granularity::Tokens, deadline, finish)
            .await?;
        let mut by_text: Vec<Vec<Entity>> = vec![Vec::new(); texts.len()];
        let mut parts: BTreeMap<usize, Vec<ScoredToken>> = BTreeMap::new();
        let mut counts = vec![0_usize; texts.len()];
        for (place, found) in windows.places.iter().zip(found) {
            match found? {
                Found::Entities(entities) => {
                    by_text[place.text].extend(entities);
                    counts[place.text] += 1;
                }
                Found::Part(tokens) => parts.entry(place.text).or_default().extend(tokens),
            }
        }
        for (text, mut tokens) in parts {
            let first = tokens.first().map_or(0, |token| token.index);
            tokens
                .iter_mut()
                .zip(first..)
                .for_each(|(token, index)| token.index = index);
            by_text[text] = count.add(grouping.entities(&indexed[text], tokens)?)?;
        }
        let mut found = Vec::new();
        for ((entities, windows), text) in by_text.into_iter().zip(counts).zip(texts.iter()) {
            let resolved = match windows {
                ..=1 => entities.clone(),
                _ => resolve_overlaps(entities.clone()),
            };
            found.push(redactor.text(text, &entities, resolved)?);
        }
        Ok(FoundEntities {
            texts: found,
            usage,
        })
    }

    /// Scores of each text's tokens without special tokens, row-major: a value per token and label. A text is one window.
    pub async fn token_scores(
        &self,
        texts: Vec<String>,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Vec<Vec<f32>>> {
        let options = WindowOptions::whole(truncation, texts.len());
        let windows = self
            .encoder
            .input_tokenizer(deadline)
            .await?
            .encode_windows(&texts.into(), options)
            .await?;
        let finish = |window: usize, rows: &[Row<'_>]| -> Vec<f32> {
            scored_tokens(&windows, window, rows[0])
                .flat_map(|token| token.scores)
                .collect()
        };
        let (scores, _) = self
            .encoder
            .run_all(&windows.encodings, Granularity::Tokens, deadline, finish)
            .await?;
        Ok(scores)
    }

    /// Logits for each input's tokens, special tokens included: one value per token and label, row-major.
    pub async fn logits(
        &self,
        inputs: Vec<Input>,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        self.encoder
            .logits(
                inputs,
                EncodingOptions::new(truncation),
                Granularity::Tokens,
                deadline,
            )
            .await
    }
}

/// Contexts in a window of a divided text, of which two are shared with other windows.
const WINDOW_CONTEXTS: usize = 8;

/// The entities that were found in a window.
enum Found {
    Entities(Vec<Entity>),
    /// The tokens of a divided text that other windows do not have.
    Part(Vec<ScoredToken>),
}

/// A window's tokens, without special tokens.
fn scored_tokens(
    windows: &EncodedWindows,
    window: usize,
    row: Row<'_>,
) -> impl Iterator<Item = ScoredToken> {
    let tokens = windows
        .tokens(window)
        .zip(row.values.chunks_exact(row.width))
        .enumerate();
    tokens.filter_map(|(index, ((id, span), logits))| {
        Some(ScoredToken {
            id,
            index,
            span: span?,
            scores: softmax(logits),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{
        backend::{Signature, TensorSpec, scripted::ScriptedBackend, tensors::TensorEncoder},
        pipeline::redaction::placeholders::Replacement,
    };
    use kivu_base::tensor::{ElementType, Elements, Tensor};

    #[tokio::test]
    async fn texts_are_redacted_where_any_window_finds_an_entity() {
        let file = "../tests/fixtures/models/tiny-bert-ner/tokenizer.json";
        let tokenizer = Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let [a, e, o, n] =
            ["a", "e", "o", "n"].map(|token| i64::from(tokenizer.id(token).unwrap()));
        let signature = Signature {
            inputs: ["input_ids", "attention_mask"]
                .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
                .into(),
            outputs: vec![TensorSpec::new("logits", ElementType::Fp32, [-1, -1, 3])],
        };
        // For windows `a e o` and `o n`: the first finds a person in `e o`, the second a more certain place in `o n`.
        let backend = ScriptedBackend::new(signature, move |inputs| {
            let Elements::Int64(ids) = inputs[0].elements() else {
                unreachable!("declared")
            };
            let logits = |id: &i64| match ids.contains(&a) {
                true if [e, o].contains(id) => [0.0, 3.0, 0.0],
                false if [o, n].contains(id) => [0.0, 0.0, 9.0],
                _ => [9.0, 0.0, 0.0],
            };
            let shape = [inputs[0].shape(), &[3]].concat();
            Ok(vec![Tensor::new(
                shape,
                Elements::Fp32(ids.iter().flat_map(logits).collect()),
            )?])
        });
        let labels = [OUTSIDE, "PER", "LOC"].map(str::to_owned).into();
        let settings = TokenClassificationSettings {
            output: "logits".into(),
            labels,
            max_tokens: 5,
            unknown_token: None,
            context: None,
        };
        let route = TensorEncoder::shared(backend).unwrap();
        let pipeline =
            TokenClassificationPipeline::new(Arc::new(tokenizer), route, settings).unwrap();
        let windows = WindowOptions {
            stride: Some(1),
            truncation: Truncation::Off,
            max_windows: 2,
            begin_at_words: false,
        };
        let redaction = Redaction {
            replacement: Some(Replacement::Label),
            ..Redaction::default()
        };
        let options = TokenClassificationOptions::new(None, None, windows, redaction).unwrap();
        let deadline = Deadline::within(Duration::from_secs(60));
        let mut found = pipeline
            .entities(
                vec!["a e o n".into()],
                &options,
                &mut options.redaction.begin().unwrap(),
                deadline,
            )
            .await
            .unwrap();
        let Some(TextEntities::Redacted { text, entities, .. }) = found.texts.pop() else {
            panic!("not redacted")
        };
        let places: Vec<_> = entities
            .iter()
            .map(|it| (it.label(), it.start, it.end))
            .collect();
        assert_eq!(places, [("LOC", 4, 7)]);
        assert_eq!(text, "a [PER]");
    }
}
