//! Texts to structures, relations, entities and labels by a schema in the request, with the results of the package
//! `gliner2`.
//!
//! The model reads all parts of a schema in front of the text, in one pass. Its output has a column for each label in each
//! instance of the label's part.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    EntityCount, IndexedText,
    schema::{self, PartWriter},
    zero_shot_entities::{AddedStop, ZeroShotEntitiesPipeline},
};
use crate::backend::{ABSENT, Deadline};
use crate::pipeline::{
    classification::scores::{ScoreFunction, descending, sigmoid},
    encoder::{Granularity, Row, executor::tokenize, usage::Usage},
};
pub use kivu_base::json::Ordered;
use kivu_base::{Error, Result};
use kivu_text as tokenizer;
use kivu_text::{Tokenizer, Truncation, WindowOptions, WordForm, WordPrompt};

/// The parts that are extracted from texts. All names are different.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtractionSchema {
    /// Structures, of which a text may have several instances.
    pub structures: Vec<Structure>,
    /// Entity labels.
    pub entities: Vec<Field>,
    /// Relations between two spans.
    pub relations: Vec<Relation>,
    /// Classifications of the text.
    pub classifications: Vec<TextLabels>,
}

/// A structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    /// Its name.
    pub name: String,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A structure's field, or an entity label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Whether it has one value at most.
    pub is_single: bool,
    /// Its possible values; without any, its values are spans in the text.
    pub choices: Vec<String>,
    /// Its description.
    pub description: Option<String>,
    /// Values have at least this score; the default is the request's.
    pub threshold: Option<f32>,
}

/// A relation.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: Option<String>,
    /// Both ends have at least this score; the default is the request's.
    pub threshold: Option<f32>,
}

/// A classification.
#[derive(Clone, Debug, PartialEq)]
pub struct TextLabels {
    /// Its name.
    pub name: String,
    /// Its labels, at least two.
    pub labels: Vec<String>,
    /// Descriptions of some labels.
    pub descriptions: Vec<(String, String)>,
    /// An instruction for the model.
    pub prompt: Option<String>,
    /// Texts, each with one of the labels.
    pub examples: Vec<(String, String)>,
    /// Whether a text may have several labels.
    pub is_multi: bool,
    /// The function for scores; by default softmax, or sigmoid with several labels.
    pub function: Option<ScoreFunction>,
    /// Several labels have at least this score.
    pub threshold: f32,
    /// Maximum number of labels, if there may be several.
    pub top: Option<usize>,
}

/// Request options.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtractionOptions {
    /// What is extracted.
    pub schema: ExtractionSchema,
    /// Values have at least this score.
    pub threshold: f32,
    /// Whether values have scores.
    pub with_confidence: bool,
    /// Whether values have places in the text.
    pub with_spans: bool,
    /// Applied to texts above the token limit.
    pub truncation: Truncation,
}

/// Results of an extraction.
#[derive(Clone, Debug, PartialEq)]
pub struct Extracted {
    /// An object per text, in the package's form.
    pub texts: Vec<Ordered>,
    /// Token counts and durations.
    pub usage: Usage,
}

/// The ends of a relation.
const ENDS: [&str; 2] = ["head", "tail"];
/// The results' name for relations.
const RELATIONS: &str = "relation_extraction";

impl ExtractionSchema {
    /// Names that results have beside the parts' own.
    pub const RESERVED: [&str; 2] = [schema::ENTITIES, RELATIONS];

    /// Number of labels in front of a text.
    pub fn labels(&self) -> usize {
        self.parts().iter().map(|part| part.labels.len()).sum()
    }

    /// The parts, in the order in which the model reads them.
    fn parts(&self) -> Vec<Part> {
        let named = |field: &'_ Field| field.name.clone();
        let structures = self.structures.iter().map(|structure| Part {
            prompt: with_descriptions(&structure.name, described(&structure.fields)),
            token: schema::FIELD,
            labels: structure.fields.iter().map(named).collect(),
        });
        let entities = (!self.entities.is_empty()).then(|| Part {
            prompt: with_descriptions(schema::ENTITIES, described(&self.entities)),
            token: schema::ENTITY,
            labels: self.entities.iter().map(named).collect(),
        });
        let relations = self.relations.iter().map(|relation| Part {
            prompt: with_prompt(&relation.name, relation.description.as_deref()),
            token: schema::RELATION_END,
            labels: ENDS.map(str::to_owned).into(),
        });
        let classifications = self.classifications.iter().map(|own| {
            let descriptions = own
                .descriptions
                .iter()
                .map(|(label, text)| (label.as_str(), text.as_str()));
            let mut prompt =
                with_descriptions(&with_prompt(&own.name, own.prompt.as_deref()), descriptions);
            let [example, output] = schema::EXAMPLE;
            own.examples
                .iter()
                .for_each(|(text, label)| prompt += &format!(" {example} {text} {output} {label}"));
            Part {
                prompt,
                token: schema::LABEL,
                labels: own.labels.clone(),
            }
        });
        structures
            .chain(entities)
            .chain(relations)
            .chain(classifications)
            .collect()
    }

    /// Words in front of each text: the choices of fields.
    fn choices(&self) -> Vec<String> {
        let mut words = Vec::new();
        for Structure { name, fields } in &self.structures {
            let mut own: Vec<String> = Vec::new();
            for field in fields.iter().filter(|field| !field.choices.is_empty()) {
                if !own.is_empty() {
                    own.push(",".to_owned());
                }
                own.extend([field.name.clone(), "(".to_owned()]);
                for (place, choice) in field.choices.iter().enumerate() {
                    own.extend((place > 0).then(|| "|".to_owned()));
                    own.push(choice.clone());
                }
                own.push(")".to_owned());
            }
            if !own.is_empty() {
                words.extend(["(".to_owned(), format!("{name}:")]);
                words.append(&mut own);
                words.push(")".to_owned());
            }
        }
        words
    }

    /// The tokens in front of each text, which has at most `max_tokens` tokens with them.
    fn prompt(&self, tokenizer: &Tokenizer, max_tokens: usize) -> Result<WordPrompt> {
        let (parts, words) = (self.parts(), self.choices());
        let sizes = parts
            .iter()
            .map(|part| part.prompt.len() + part.labels.iter().map(String::len).sum::<usize>());
        let size = sizes.sum::<usize>() + words.iter().map(String::len).sum::<usize>();
        if size > tokenizer::reach(max_tokens) {
            return Err(Error::too_large(format!(
                "the schema has {size} bytes, but the model takes at most {max_tokens} tokens"
            ))
            .with_hint("send a smaller schema"));
        }
        let own = [
            schema::SCHEMA,
            schema::ENTITY,
            schema::FIELD,
            schema::RELATION_END,
            schema::LABEL,
        ];
        let writer = PartWriter::new(tokenizer, &own)?;
        let mut ids = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            if place > 0 {
                ids.extend(tokenizer.ids(schema::SCHEMA_SEPARATOR)?);
            }
            let names = [schema::SCHEMA, &part.prompt, part.token];
            writer.write(names, &part.labels, &mut ids)?;
        }
        ids.extend(tokenizer.ids(schema::SEPARATOR)?);
        let words = words.iter().map(|word| writer.checked("choice", word));
        let words = words.collect::<Result<_>>()?;
        Ok(WordPrompt {
            ids,
            words,
            max_words: max_tokens,
            form: WordForm::Gliner2,
            finds_words: true,
        })
    }
}

/// A part of a schema, as the model reads it.
struct Part {
    /// Its name, with descriptions.
    prompt: String,
    /// The token before each label.
    token: &'static str,
    labels: Vec<String>,
}

fn with_prompt(name: &str, prompt: Option<&str>) -> String {
    prompt.map_or_else(|| name.to_owned(), |prompt| format!("{name}: {prompt}"))
}

fn described(fields: &[Field]) -> impl Iterator<Item = (&str, &str)> {
    fields
        .iter()
        .filter_map(|field| Some((field.name.as_str(), field.description.as_deref()?)))
}

fn with_descriptions<'a>(
    name: &str,
    descriptions: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut prompt = name.to_owned();
    descriptions
        .for_each(|(label, text)| prompt += &format!(" {} {label}: {text}", schema::DESCRIPTION));
    prompt
}

impl ZeroShotEntitiesPipeline {
    /// Extracts from texts what a schema describes. Refuses models that read no schemas.
    pub async fn extract(
        &self,
        texts: Vec<String>,
        options: &ExtractionOptions,
        deadline: Deadline,
    ) -> Result<Extracted> {
        let tokenizer = Arc::clone(self.encoder.tokenizer());
        if self.settings.schema_token.is_none() || tokenizer.id(schema::FIELD).is_none() {
            return Err(Error::invalid(
                "schemas are not supported: the model is not GLiNER2, and finds entities only",
            ));
        }
        let options = Arc::new(options.clone());
        let texts: Arc<[String]> = texts.into();
        let (own, max_tokens) = (Arc::clone(&options), self.settings.max_tokens);
        let prompt = move || own.schema.prompt(&tokenizer, max_tokens);
        let prompt = tokenize(options.schema.labels(), deadline, prompt).await?;
        let choices: Vec<String> = options
            .schema
            .choices()
            .iter()
            .map(|choice| choice.to_lowercase())
            .collect();
        let windows = WindowOptions::whole(options.truncation, texts.len());
        let windows = self
            .encoder
            .input_tokenizer(deadline)
            .await?
            .encode_words(&texts, prompt, windows)
            .await?;
        let count = EntityCount::default();
        let finish = |window: usize, rows: &[Row<'_>]| {
            let place = &windows.places[window];
            let mut words: Vec<(usize, usize)> = place.spans.iter().copied().flatten().collect();
            let stop = AddedStop::of(&mut words);
            let text = IndexedText::new(&texts[place.text]);
            let scores = Scores {
                logits: rows[0],
                labels: options.schema.labels(),
                choices: &choices,
                words: &words,
                stop,
                text: &text,
                options: &options,
                count: &count,
            };
            scores.check()?;
            scores.result()
        };
        let (found, mut usage) = self
            .encoder
            .run_all(&windows.encodings, Granularity::Texts, deadline, finish)
            .await?;
        windows.count_texts(&mut usage);
        // Each text has at least the added full stop, and so a window.
        let texts = found.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Extracted { texts, usage })
    }
}

/// A text's scores, and what they are for.
#[derive(Clone, Copy)]
struct Scores<'a> {
    logits: Row<'a>,
    /// Labels in the schema, each of which has a column per instance.
    labels: usize,
    /// Words in front of the text's own, in lower case.
    choices: &'a [String],
    words: &'a [(usize, usize)],
    stop: Option<AddedStop>,
    text: &'a IndexedText<'a>,
    options: &'a ExtractionOptions,
    count: &'a EntityCount,
}

/// A value in a text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    /// Its first character.
    start: usize,
    /// The character after its last.
    end: usize,
    score: f32,
}

impl Value {
    /// Whether it is more than the added full stop.
    fn is_in_text(&self) -> bool {
        self.start < self.end
    }
}

impl Scores<'_> {
    fn check(&self) -> Result<()> {
        let Row {
            values,
            columns,
            width,
        } = self.logits;
        let rows = self.choices.len() + self.words.len();
        let is_valid = self.labels > 0
            && columns > 0
            && columns.is_multiple_of(self.labels)
            && values.len() >= rows * columns * width;
        if is_valid {
            return Ok(());
        }
        Err(Error::inference(format!(
            "expected scores of {rows} words for each of {} labels, but found {columns} for {} words",
            self.labels,
            values.len() / (columns * width).max(1)
        )))
    }

    /// All values, in the package's form.
    fn result(&self) -> Result<Ordered> {
        let ExtractionSchema {
            structures,
            entities,
            relations,
            classifications,
        } = &self.options.schema;
        let (mut result, mut first) = (Vec::new(), 0);
        for structure in structures {
            result.push((structure.name.clone(), self.structure(first, structure)?));
            first += structure.fields.len();
        }
        if !entities.is_empty() {
            result.push((schema::ENTITIES.to_owned(), self.entities(first, entities)?));
            first += entities.len();
        }
        let mut related = Vec::new();
        for relation in relations {
            related.push((relation.name.clone(), self.relation(first, relation)?));
            first += ENDS.len();
        }
        for classification in classifications {
            result.push((
                classification.name.clone(),
                self.labels(first, classification),
            ));
            first += classification.labels.len();
        }
        if !related.is_empty() {
            result.push((RELATIONS.to_owned(), Ordered::Object(related)));
        }
        Ok(Ordered::Object(result))
    }

    /// A list of instances; an empty object if there are none by count, as in the package.
    fn structure(&self, first: usize, structure: &Structure) -> Result<Ordered> {
        let count = self.instances(first);
        if count == 0 {
            return Ok(Ordered::Object(Vec::new()));
        }
        let mut instances = Vec::new();
        for instance in 0..count {
            let fields = structure.fields.iter().enumerate().map(|(place, field)| {
                Ok((
                    field.name.clone(),
                    self.field([instance, first + place], field)?,
                ))
            });
            let fields = fields.collect::<Result<Vec<_>>>()?;
            let is_empty = |value: &Ordered| match value {
                Ordered::List(values) => values.is_empty(),
                value => *value == Ordered::Null,
            };
            if !fields.iter().all(|(_, value)| is_empty(value)) {
                instances.push(Ordered::Object(fields));
            }
        }
        Ok(Ordered::List(instances))
    }

    /// Values by label; an empty object if there are none by count, as in the package.
    fn entities(&self, first: usize, entities: &[Field]) -> Result<Ordered> {
        let mut found = Vec::new();
        if self.instances(first) > 0 {
            for (place, entity) in entities.iter().enumerate() {
                found.push((entity.name.clone(), self.field([0, first + place], entity)?));
            }
        }
        Ok(Ordered::Object(found))
    }

    /// A list of instances with both ends.
    fn relation(&self, first: usize, relation: &Relation) -> Result<Ordered> {
        let threshold = relation.threshold.unwrap_or(self.options.threshold);
        let mut found = Vec::new();
        for instance in 0..self.instances(first) {
            let mut ends = Vec::new();
            for end in 0..ENDS.len() {
                let best = self
                    .values([instance, first + end], threshold)?
                    .first()
                    .copied();
                ends.extend(best.filter(Value::is_in_text));
            }
            let [head, tail] = ends[..] else { continue };
            let ends = [head, tail].map(|value| self.written(value));
            found.push(
                match self.options.with_confidence || self.options.with_spans {
                    true => {
                        Ordered::Object(ENDS.map(str::to_owned).into_iter().zip(ends).collect())
                    }
                    false => Ordered::List(ends.into()),
                },
            );
        }
        Ok(Ordered::List(found))
    }

    fn labels(&self, first: usize, own: &TextLabels) -> Ordered {
        let logits: Vec<f32> = (0..own.labels.len())
            .map(|label| self.logit(0, [0, first + label], 0))
            .collect();
        let default = if own.is_multi {
            ScoreFunction::Sigmoid
        } else {
            ScoreFunction::Softmax
        };
        let scores = own.function.unwrap_or(default).apply(&logits);
        let order = descending(&scores);
        let written =
            |label: usize| self.with_confidence(&own.labels[label], scores[label], "label");
        if !own.is_multi {
            return order.first().map_or(Ordered::Null, |best| written(*best));
        }
        let mut chosen: Vec<usize> = (0..scores.len())
            .filter(|label| scores[*label] >= own.threshold)
            .collect();
        if chosen.is_empty() {
            chosen.extend(order.first());
        }
        if let Some(top) = own.top {
            chosen.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]));
            chosen.truncate(top);
        }
        Ordered::List(chosen.into_iter().map(written).collect())
    }

    /// A field's values, or its value.
    fn field(&self, place: [usize; 2], field: &Field) -> Result<Ordered> {
        let threshold = field.threshold.unwrap_or(self.options.threshold);
        if !field.choices.is_empty() {
            return Ok(self.choice(place, field, threshold));
        }
        let values = self.values(place, threshold)?;
        if field.is_single {
            let best = values.first().filter(|value| value.is_in_text());
            return Ok(best.map_or(Ordered::Null, |value| self.written(*value)));
        }
        // Without places, a text that is repeated is one value.
        let mut seen = BTreeSet::new();
        let is_new = |value: &&Value| {
            let place = if self.options.with_spans {
                (value.start, value.end)
            } else {
                (0, 0)
            };
            seen.insert((self.text.part(value.start, value.end).to_lowercase(), place))
        };
        let values = values
            .iter()
            .filter(|value| value.is_in_text())
            .filter(is_new);
        Ok(Ordered::List(
            values.map(|value| self.written(*value)).collect(),
        ))
    }

    /// The choices above the threshold, or the best one.
    fn choice(&self, place: [usize; 2], field: &Field, threshold: f32) -> Ordered {
        // The package takes a choice's first equal word, of any field.
        let scored = field.choices.iter().filter_map(|choice| {
            let lower = choice.to_lowercase();
            let word = self.choices.iter().position(|word| *word == lower)?;
            Some((choice, sigmoid(self.logit(word, place, 0))))
        });
        let written = |(choice, score): (&String, f32)| self.with_confidence(choice, score, "text");
        if field.is_single {
            let best = scored.fold(None, |best: Option<(&String, f32)>, next| match best {
                Some(best) if best.1 >= next.1 => Some(best),
                _ => Some(next),
            });
            return best
                .filter(|(_, score)| *score >= threshold)
                .map_or(Ordered::Null, written);
        }
        let mut seen = BTreeSet::new();
        let likely = scored
            .filter(|(choice, score)| *score >= threshold && seen.insert(choice.to_lowercase()));
        Ordered::List(likely.map(written).collect())
    }

    /// Spans with scores of at least the threshold, the highest first; of overlapping ones the highest. One of them may be
    /// the added full stop alone.
    fn values(&self, place: [usize; 2], threshold: f32) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        for first in 0..self.words.len() {
            for length in 0..self.logits.width.min(self.words.len() - first) {
                let score = sigmoid(self.logit(self.choices.len() + first, place, length));
                if score >= threshold {
                    found.push(Value {
                        start: self.words[first].0,
                        end: self.words[first + length].1,
                        score,
                    });
                }
            }
        }
        found.sort_by(|left, right| right.score.total_cmp(&left.score));
        let mut kept: Vec<Value> = Vec::new();
        for value in self.count.add(found)? {
            if kept
                .iter()
                .all(|other| value.end <= other.start || other.end <= value.start)
            {
                kept.push(value);
            }
        }
        if let Some(stop) = self.stop {
            kept.iter_mut()
                .for_each(|value| value.end = stop.end(value.end));
        }
        Ok(kept)
    }

    /// Number of instances of a label's part.
    fn instances(&self, label: usize) -> usize {
        let all = self.logits.columns / self.labels;
        (0..all)
            .take_while(|instance| self.logit(0, [*instance, label], 0) > ABSENT)
            .count()
    }

    fn logit(&self, word: usize, [instance, label]: [usize; 2], length: usize) -> f32 {
        let Row {
            values,
            columns,
            width,
        } = self.logits;
        values[(word * columns + instance * self.labels + label) * width + length]
    }

    fn written(&self, Value { start, end, score }: Value) -> Ordered {
        let text = self.text.part(start, end);
        let value = self.with_confidence(text, score, "text");
        if !self.options.with_spans {
            return value;
        }
        let mut fields = match value {
            Ordered::Object(fields) => fields,
            value => vec![("text".to_owned(), value)],
        };
        let places = [("start", start), ("end", end)];
        fields.extend(places.map(|(name, place)| (name.to_owned(), Ordered::Position(place))));
        Ordered::Object(fields)
    }

    fn with_confidence(&self, text: &str, score: f32, name: &str) -> Ordered {
        let text = Ordered::Text(text.to_owned());
        match self.options.with_confidence {
            false => text,
            true => Ordered::Object(vec![
                (name.to_owned(), text),
                ("confidence".to_owned(), Ordered::Score(score)),
            ]),
        }
    }
}
