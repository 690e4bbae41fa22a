//! Extraction by a schema, in the forms of the package `gliner2` and of its client for servers.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Scope;
use kivu_base::{
    Error, Result,
    error::quoted,
    json::{self, Budget},
};
use kivu_core::{
    backend::Deadline,
    pipeline::{
        classification::scores::ScoreFunction,
        entities::{
            extraction::{
                Extracted, ExtractionOptions, ExtractionSchema, Field, Ordered, Relation,
                Structure, TextLabels,
            },
            zero_shot_entities::{THRESHOLD, ZeroShotEntitiesPipeline},
        },
    },
};
use kivu_text as tokenizer;
use kivu_text::{Side, Truncation};

/// The form of a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchemaForm {
    /// Any of `entities`, `structures`, `relations` and `classifications`.
    #[default]
    Schema,
    /// Entity labels.
    ExtractEntities,
    /// Structures.
    ExtractJson,
    /// `categories`, the labels of one classification.
    ClassifyText,
}

/// Extraction parameters, named as in the package `gliner2`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `schema`")]
pub struct ExtractionParameters {
    /// The schema's form; `schema` by default.
    pub task: Option<SchemaForm>,
    /// What is extracted, as in `POST /gliner-2`. The order of names is kept.
    pub schema: Ordered,
    /// Values have at least this score, 0.5 by default.
    #[schemars(range(min = 0, max = 1))]
    pub threshold: Option<f32>,
    /// Whether values have scores; false by default.
    pub include_confidence: Option<bool>,
    /// Whether values have places in the text; false by default.
    pub include_spans: Option<bool>,
    /// Must be true: other results are the package's own tuples.
    pub format_results: Option<bool>,
    /// Whether texts above the token limit are truncated; otherwise they are refused.
    pub truncate: Option<bool>,
}

/// A model that reads schemas, with checked parameters.
#[derive(Clone, Debug)]
pub struct Extractor {
    pipeline: ZeroShotEntitiesPipeline,
    options: ExtractionOptions,
}

impl ExtractionParameters {
    /// Checks the parameters.
    pub fn prepare(&self, pipeline: &ZeroShotEntitiesPipeline, scope: &Scope) -> Result<Extractor> {
        if self.format_results == Some(false) {
            return Err(Error::invalid(
                "expected `format_results` true, but found false: results without a form are tuples of Python",
            ));
        }
        check_size(
            &self.schema,
            scope.max_labels,
            pipeline.settings().max_tokens,
        )?;
        let schema = read(self.task.unwrap_or_default(), &self.schema)?;
        super::count("labels in the schema", schema.labels(), scope.max_labels)
            .map_err(|error| error.in_field("schema"))?;
        let truncation = match self.truncate.unwrap_or(scope.truncate) {
            true => Truncation::At(Side::Right),
            false => Truncation::Off,
        };
        let options = ExtractionOptions {
            schema,
            threshold: probability("threshold", self.threshold.unwrap_or(THRESHOLD))?,
            with_confidence: self.include_confidence.unwrap_or(false),
            with_spans: self.include_spans.unwrap_or(false),
            truncation,
        };
        Ok(Extractor {
            pipeline: pipeline.clone(),
            options,
        })
    }
}

/// Reads extraction parameters from JSON; the order of names is kept. Errors name the parameter.
///
/// # Errors
/// The text is no JSON object, or a value does not fit its parameter.
pub fn read_extraction_parameters(parameters: &str) -> Result<ExtractionParameters> {
    let text = parameters.as_bytes();
    json::read(text, Budget::new(text.len(), usize::MAX))
        .map_err(|error| Error::invalid(format!("invalid parameters: {}", error.explain(text))))
}

impl Extractor {
    /// Extracts from texts what the schema describes.
    pub fn run(&self, texts: Vec<String>, deadline: Deadline) -> BoxFuture<'_, Result<Extracted>> {
        Box::pin(self.pipeline.extract(texts, &self.options, deadline))
    }
}

/// Refuses schemas that are too large for any model input, before they are read.
fn check_size(schema: &Ordered, max_labels: usize, max_tokens: usize) -> Result<()> {
    /// A field has about six values, and its choices.
    const VALUES_PER_LABEL: usize = 16;
    /// The longest key or value that is not part of the model's input.
    const WORD_BYTES: usize = 16;
    let (mut values, mut bytes, mut rest) = (0_usize, 0_usize, vec![schema]);
    while let Some(value) = rest.pop() {
        values += 1;
        match value {
            Ordered::Text(text) => bytes += text.len(),
            Ordered::List(items) => rest.extend(items),
            Ordered::Object(fields) => {
                bytes += fields.iter().map(|(name, _)| name.len()).sum::<usize>();
                rest.extend(fields.iter().map(|(_, value)| value));
            }
            _ => {}
        }
    }
    let max = max_labels.saturating_mul(VALUES_PER_LABEL);
    if values > max {
        return Err(Error::too_large(format!(
            "the schema has {values} values, but may have at most {max}"
        ))
        .with_hint("send a smaller schema"));
    }
    let words = (2 * values).saturating_mul(WORD_BYTES);
    if bytes.saturating_sub(words) > tokenizer::reach(max_tokens) {
        return Err(Error::too_large(format!(
            "the schema has {bytes} bytes, but the model takes at most {max_tokens} tokens"
        ))
        .with_hint("send a smaller schema"));
    }
    Ok(())
}

/// Reads a schema.
pub fn read(form: SchemaForm, value: &Ordered) -> Result<ExtractionSchema> {
    let schema = match form {
        SchemaForm::Schema => Reader::new("schema", value)?.schema()?,
        SchemaForm::ExtractEntities => ExtractionSchema {
            entities: named("schema", value, entity)?,
            ..ExtractionSchema::default()
        },
        SchemaForm::ExtractJson => ExtractionSchema {
            structures: structures("schema", value)?,
            ..ExtractionSchema::default()
        },
        SchemaForm::ClassifyText => {
            let mut reader = Reader::new("schema", value)?;
            let labels = labels("schema.categories", reader.required("categories")?)?;
            reader.finish()?;
            let classifications = vec![classification("classification", labels)];
            ExtractionSchema {
                classifications,
                ..ExtractionSchema::default()
            }
        }
    };
    check_names(&schema)?;
    Ok(schema)
}

/// Refuses names that several parts have, or results beside them.
fn check_names(schema: &ExtractionSchema) -> Result<()> {
    let mut seen: BTreeSet<&str> = ExtractionSchema::RESERVED.into();
    let structures = schema
        .structures
        .iter()
        .map(|structure| structure.name.as_str());
    let relations = schema
        .relations
        .iter()
        .map(|relation| relation.name.as_str());
    let classifications = schema.classifications.iter().map(|own| own.name.as_str());
    let mut names = structures.chain(relations).chain(classifications);
    match names.find(|name| !seen.insert(name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "expected different names other than {} in the schema, but found `{}` twice",
            quoted(&ExtractionSchema::RESERVED),
            name.escape_default()
        ))
        .with_hint("rename one of them")),
    }
}

/// Reads an object's fields, and refuses those that nobody asked for.
struct Reader<'a> {
    path: String,
    fields: Vec<(&'a str, &'a Ordered)>,
}

impl<'a> Reader<'a> {
    fn new(path: impl Into<String>, value: &'a Ordered) -> Result<Self> {
        let (path, fields) = (path.into(), object(value));
        let fields = fields.ok_or_else(|| wrong(&path, "an object", value))?;
        Ok(Self {
            path,
            fields: fields.collect(),
        })
    }

    /// A field that is not null.
    fn take(&mut self, name: &str) -> Option<&'a Ordered> {
        let place = self.fields.iter().position(|(own, _)| *own == name)?;
        Some(self.fields.remove(place).1).filter(|value| **value != Ordered::Null)
    }

    fn required(&mut self, name: &str) -> Result<&'a Ordered> {
        self.take(name).ok_or_else(|| {
            Error::invalid(format!(
                "expected `{name}` in `{}`, but found none",
                self.path
            ))
        })
    }

    fn text(&mut self, name: &str) -> Result<Option<String>> {
        let path = format!("{}.{name}", self.path);
        self.take(name).map(|value| text(&path, value)).transpose()
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        let path = format!("{}.{name}", self.path);
        match self.take(name) {
            None => Ok(false),
            Some(Ordered::Flag(flag)) => Ok(*flag),
            Some(other) => Err(wrong(&path, "a boolean", other)),
        }
    }

    fn threshold(&mut self, name: &str) -> Result<Option<f32>> {
        let path = format!("{}.{name}", self.path);
        match self.take(name) {
            None => Ok(None),
            Some(Ordered::Number(number)) => probability(&path, *number as f32).map(Some),
            Some(other) => Err(wrong(&path, "a number", other)),
        }
    }

    /// Whether a field or entity has one value at most: `dtype`.
    fn is_single(&mut self, name: &str) -> Result<Option<bool>> {
        match self.text(name)?.as_deref() {
            None => Ok(None),
            Some("str") => Ok(Some(true)),
            Some("list") => Ok(Some(false)),
            Some(found) => {
                let path = format!("{}.{name}", self.path);
                Err(unexpected(&path, "`str` or `list`", found))
            }
        }
    }

    fn schema(mut self) -> Result<ExtractionSchema> {
        let (single, threshold) = (
            self.is_single("entity_dtype")?,
            self.threshold("entity_threshold")?,
        );
        let of_relations = self.threshold("relation_threshold")?;
        let mut schema = ExtractionSchema::default();
        if let Some(value) = self.take("entities") {
            let entity = |path: &str, name, value: Option<&Ordered>| {
                let found = entity(path, name, value)?;
                // A label's own settings take precedence.
                let is_single = match value.is_some_and(|value| has(value, "dtype")) {
                    true => found.is_single,
                    false => single.unwrap_or(false),
                };
                Ok(Field {
                    is_single,
                    threshold: found.threshold.or(threshold),
                    ..found
                })
            };
            schema.entities = named("schema.entities", value, entity)?;
        }
        if let Some(value) = self.take("structures") {
            schema.structures = structures("schema.structures", value)?;
        }
        if let Some(value) = self.take("relations") {
            let mut found = named("schema.relations", value, relation)?;
            found
                .iter_mut()
                .for_each(|own| own.threshold = own.threshold.or(of_relations));
            schema.relations = found;
        }
        if let Some(value) = self.take("classifications") {
            schema.classifications = classifications("schema.classifications", value)?;
        }
        self.finish()?;
        if schema == ExtractionSchema::default() {
            return Err(Error::invalid(
                "expected `entities`, `structures`, `relations` or `classifications` in `schema`, but found none",
            ));
        }
        Ok(schema)
    }

    /// Refuses fields that are left.
    fn finish(self) -> Result<()> {
        match self.fields.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::invalid(format!(
                "unknown field in `{}`: `{}`",
                self.path,
                name.escape_default()
            ))),
        }
    }
}

/// The path of a name below `path`. Long names are shortened: each of a schema's fields has its path.
fn below(path: &str, name: &str) -> String {
    /// Characters of a name.
    const MAX_NAME: usize = 40;
    let end = name.char_indices().nth(MAX_NAME);
    match end {
        None => format!("{path}.{name}"),
        Some((end, _)) => format!("{path}.{}…", &name[..end]),
    }
}

/// An object's fields.
fn object(value: &Ordered) -> Option<impl Iterator<Item = (&str, &Ordered)>> {
    match value {
        Ordered::Object(fields) => Some(fields.iter().map(|(name, value)| (name.as_str(), value))),
        _ => None,
    }
}

fn has(value: &Ordered, name: &str) -> bool {
    object(value).is_some_and(|mut fields| fields.any(|(own, _)| own == name))
}

/// Error for another text than what is expected.
fn unexpected(path: &str, expected: &str, found: &str) -> Error {
    Error::invalid(format!(
        "expected {expected} in `{path}`, but found `{}`",
        found.escape_default()
    ))
}

fn wrong(path: &str, expected: &str, found: &Ordered) -> Error {
    Error::invalid(format!(
        "expected {expected} in `{path}`, but found {}",
        found.kind()
    ))
}

fn probability(path: &str, found: f32) -> Result<f32> {
    match (0.0..=1.0).contains(&found) {
        true => Ok(found),
        false => Err(Error::invalid(format!(
            "expected a `{path}` from 0 to 1, but found {found}"
        ))
        .in_field(path)),
    }
}

fn text(path: &str, value: &Ordered) -> Result<String> {
    match value {
        Ordered::Text(text) => Ok(text.clone()),
        other => Err(wrong(path, "a string", other)),
    }
}

/// A name, which is not blank.
fn name(path: &str, value: &str) -> Result<String> {
    match value.trim().is_empty() {
        false => Ok(value.to_owned()),
        true => Err(Error::invalid(format!(
            "expected a name in `{path}`, but found none"
        ))),
    }
}

fn list<'a>(path: &str, value: &'a Ordered) -> Result<&'a [Ordered]> {
    match value {
        Ordered::List(values) => filled(path, values.as_slice()),
        other => Err(wrong(path, "a list", other)),
    }
}

/// Refuses an empty list.
fn filled<T, L: AsRef<[T]>>(path: &str, found: L) -> Result<L> {
    match found.as_ref().is_empty() {
        false => Ok(found),
        true => Err(Error::invalid(format!(
            "expected entries in `{path}`, but found none"
        ))),
    }
}

/// Different names, which are not blank: a list of strings.
fn names(path: &str, value: &Ordered) -> Result<Vec<String>> {
    let found = list(path, value)?
        .iter()
        .map(|value| name(path, &text(path, value)?));
    different(path, found.collect::<Result<_>>()?, String::as_str)
}

fn different<T>(path: &str, found: Vec<T>, name: impl Fn(&T) -> &str) -> Result<Vec<T>> {
    let mut seen = BTreeSet::new();
    match found.iter().map(name).find(|name| !seen.insert(*name)) {
        None => Ok(found),
        Some(twice) => Err(Error::invalid(format!(
            "expected different names in `{path}`, but found `{}` twice",
            twice.escape_default()
        ))),
    }
}

/// A name, names, or names with settings.
fn named<T>(
    path: &str,
    value: &Ordered,
    read: impl Fn(&str, String, Option<&Ordered>) -> Result<T>,
) -> Result<Vec<T>> {
    if let Ordered::Text(only) = value {
        return Ok(vec![read(path, name(path, only)?, None)?]);
    }
    let Some(fields) = object(value) else {
        return names(path, value)?
            .into_iter()
            .map(|name| read(path, name, None))
            .collect();
    };
    let found = fields.map(|(own, value)| read(&below(path, own), name(path, own)?, Some(value)));
    filled(path, found.collect::<Result<Vec<T>>>()?)
}

/// An entity label, with a description or settings.
fn entity(path: &str, name: String, value: Option<&Ordered>) -> Result<Field> {
    let own = Field {
        name,
        ..Field::default()
    };
    match value {
        None | Some(Ordered::Null) => Ok(own),
        Some(Ordered::Text(description)) => Ok(Field {
            description: Some(description.clone()),
            ..own
        }),
        Some(settings) => {
            let mut reader = Reader::new(path, settings)?;
            let field = Field {
                description: reader.text("description")?,
                is_single: reader.is_single("dtype")?.unwrap_or(false),
                threshold: reader.threshold("threshold")?,
                ..own
            };
            reader.finish().map(|()| field)
        }
    }
}

fn relation(path: &str, name: String, value: Option<&Ordered>) -> Result<Relation> {
    let Field {
        name,
        is_single,
        description,
        threshold,
        ..
    } = entity(path, name, value)?;
    match is_single {
        false => Ok(Relation {
            name,
            description,
            threshold,
        }),
        true => Err(Error::invalid(format!(
            "expected no `dtype` in `{path}`, since relations have two ends"
        ))),
    }
}

/// Structures by name: lists of fields, or objects with such a list.
fn structures(path: &str, value: &Ordered) -> Result<Vec<Structure>> {
    let fields = object(value).ok_or_else(|| wrong(path, "an object", value))?;
    let found = fields.map(|(own, value)| {
        let path = below(path, own);
        let fields = match value {
            Ordered::Object(_) => {
                let mut reader = Reader::new(path.as_str(), value)?;
                let fields = reader.required("fields")?;
                reader.finish()?;
                fields
            }
            other => other,
        };
        let read = list(&path, fields)?.iter().map(|value| field(&path, value));
        let fields = different(&path, read.collect::<Result<_>>()?, |field| &field.name)?;
        Ok(Structure {
            name: name(&path, own)?,
            fields,
        })
    });
    filled(path, found.collect::<Result<Vec<_>>>()?)
}

/// A field: `name::type::[choice|choice]::description`, or an object.
fn field(path: &str, value: &Ordered) -> Result<Field> {
    let Ordered::Text(text) = value else {
        let mut reader = Reader::new(path, value)?;
        let own = reader.text("name")?.unwrap_or_default();
        let path = below(path, &own);
        let choices = reader
            .take("choices")
            .map(|value| names(&format!("{path}.choices"), value));
        let field = Field {
            name: name(&path, &own)?,
            is_single: reader.is_single("dtype")?.unwrap_or(false),
            choices: choices.transpose()?.unwrap_or_default(),
            description: reader.text("description")?.filter(|text| !text.is_empty()),
            threshold: reader.threshold("threshold")?,
        };
        return reader.finish().map(|()| field);
    };
    let mut parts = text.split("::");
    let mut field = Field {
        name: name(path, parts.next().unwrap_or_default())?,
        ..Field::default()
    };
    let mut has_type = false;
    for part in parts {
        match part {
            "str" | "list" => (field.is_single, has_type) = (part == "str", true),
            part => match part
                .strip_prefix('[')
                .and_then(|part| part.strip_suffix(']'))
            {
                Some(choices) => {
                    let choices = choices.split('|').map(|choice| name(path, choice.trim()));
                    field.choices =
                        different(path, choices.collect::<Result<_>>()?, String::as_str)?;
                    // The type of choices is `str` by default.
                    field.is_single |= !has_type;
                }
                None => field.description = Some(part.to_owned()).filter(|text| !text.is_empty()),
            },
        }
    }
    Ok(field)
}

/// Labels, with or without descriptions.
fn labels(path: &str, value: &Ordered) -> Result<Vec<(String, Option<String>)>> {
    let found: Vec<(String, Option<String>)> = match object(value) {
        None => names(path, value)?
            .into_iter()
            .map(|label| (label, None))
            .collect(),
        Some(fields) => {
            let read = fields.map(|(own, value)| Ok((name(path, own)?, Some(text(path, value)?))));
            read.collect::<Result<_>>()?
        }
    };
    match found.len() {
        2.. => Ok(found),
        count => Err(Error::invalid(format!(
            "expected at least 2 labels in `{path}`, but found {count}"
        ))),
    }
}

fn classification(name: &str, labels: Vec<(String, Option<String>)>) -> TextLabels {
    let described = labels
        .iter()
        .filter_map(|(label, text)| Some((label.clone(), text.clone()?)));
    TextLabels {
        name: name.to_owned(),
        descriptions: described.collect(),
        labels: labels.into_iter().map(|(label, _)| label).collect(),
        prompt: None,
        examples: Vec::new(),
        is_multi: false,
        function: None,
        threshold: THRESHOLD,
        top: None,
    }
}

/// A list of classifications, or classifications by name.
fn classifications(path: &str, value: &Ordered) -> Result<Vec<TextLabels>> {
    if let Some(fields) = object(value) {
        let found = fields.map(|(own, value)| {
            let (path, own) = (below(path, own), name(path, own)?);
            match has(value, "labels") {
                false => Ok(classification(&own, labels(&path, value)?)),
                true => with_settings(Reader::new(path, value)?, Some(own)),
            }
        });
        return found.collect();
    }
    let found = list(path, value)?.iter().enumerate();
    found
        .map(|(index, value)| with_settings(Reader::new(format!("{path}[{index}]"), value)?, None))
        .collect()
}

fn with_settings(mut reader: Reader<'_>, own: Option<String>) -> Result<TextLabels> {
    let own = match own {
        Some(name) => name,
        None => name(
            &format!("{}.task", reader.path),
            &reader.text("task")?.unwrap_or_default(),
        )?,
    };
    let path = format!("{}.labels", reader.path);
    let labels = labels(&path, reader.required("labels")?)?;
    let top = match reader.take("top_k") {
        None => None,
        Some(Ordered::Number(number)) if *number >= 1.0 && number.fract() == 0.0 => {
            Some(*number as usize)
        }
        Some(_) => {
            return Err(Error::invalid(format!(
                "expected a `top_k` of at least 1 in `{}`",
                reader.path
            )));
        }
    };
    let function = match reader.text("class_act")?.as_deref() {
        None | Some("auto") => None,
        Some("sigmoid") => Some(ScoreFunction::Sigmoid),
        Some("softmax") => Some(ScoreFunction::Softmax),
        Some(found) => {
            let path = format!("{}.class_act", reader.path);
            return Err(unexpected(&path, "`auto`, `sigmoid` or `softmax`", found));
        }
    };
    let mut found = TextLabels {
        is_multi: reader.flag("multi_label")?,
        threshold: reader.threshold("cls_threshold")?.unwrap_or(THRESHOLD),
        prompt: reader.text("prompt")?.filter(|text| !text.is_empty()),
        top,
        function,
        ..classification(&own, labels)
    };
    if let Some(value) = reader.take("examples") {
        let path = format!("{}.examples", reader.path);
        let known: BTreeSet<&str> = found.labels.iter().map(String::as_str).collect();
        let mut examples = Vec::new();
        for example in list(&path, value)? {
            match example {
                Ordered::List(pair) if pair.len() == 2 => {
                    let label = text(&path, &pair[1])?;
                    if !known.contains(label.as_str()) {
                        return Err(unexpected(&path, &format!("a label of `{own}`"), &label));
                    }
                    examples.push((text(&path, &pair[0])?, label));
                }
                other => return Err(wrong(&path, "lists of a text and a label", other)),
            }
        }
        found.examples = examples;
    }
    reader.finish().map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(form: SchemaForm, text: &str) -> Result<ExtractionSchema> {
        read(form, &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn both_forms_of_schemas_are_the_same() {
        let of_package = parsed(
            SchemaForm::Schema,
            r#"{
                "entities": {"person": "a human", "city": {"dtype": "str", "threshold": 0.25}},
                "structures": {"order": {"fields": [
                    {"name": "item", "dtype": "str", "description": "what is bought"},
                    {"name": "size", "choices": ["s", "m"], "dtype": "str"}, {"name": "colour"}
                ]}},
                "classifications": [{"task": "mood", "labels": ["good", "bad"], "multi_label": true, "top_k": 1}],
                "relations": ["lives_in"]
            }"#,
        );
        let of_client = parsed(
            SchemaForm::Schema,
            r#"{
                "entities": {"person": "a human", "city": {"dtype": "str", "threshold": 0.25}}, "entity_dtype": "list",
                "classifications": {"mood": {"labels": ["good", "bad"], "multi_label": true, "top_k": 1}},
                "structures": {"order": ["item::str::what is bought", "size::[s|m]", "colour::list"]},
                "relations": {"lives_in": {}}
            }"#,
        );
        let found = of_package.unwrap();
        assert_eq!(found, of_client.unwrap());
        assert_eq!(found.labels(), 2 + 3 + 2 + 2);
        assert_eq!(found.structures[0].fields[1].choices, ["s", "m"]);
        assert!(found.entities[1].is_single && !found.entities[0].is_single);
        let json = parsed(
            SchemaForm::ExtractJson,
            r#"{"order": ["item::str::what is bought", "size::[s|m]", "colour"]}"#,
        );
        assert_eq!(json.unwrap().structures, found.structures);
        let labels = parsed(
            SchemaForm::ClassifyText,
            r#"{"categories": ["good", "bad"]}"#,
        )
        .unwrap();
        assert_eq!(labels.classifications[0].name, "classification");
        let entities = parsed(SchemaForm::ExtractEntities, r#"["b", "a"]"#)
            .unwrap()
            .entities;
        assert_eq!(
            entities
                .iter()
                .map(|entity| entity.name.as_str())
                .collect::<Vec<_>>(),
            ["b", "a"]
        );
    }

    #[test]
    fn sizes_are_checked_before_a_schema_is_read() {
        let refusal = |schema: &str| {
            let schema = serde_json::from_str(schema).unwrap();
            check_size(&schema, 4, 8).unwrap_err().to_string()
        };
        let labels = format!(r#"{{"entities": {:?}}}"#, vec!["a"; 100]);
        insta::assert_snapshot!(refusal(&labels), @"the schema has 102 values, but may have at most 64; send a smaller schema");
        let name = format!(
            r#"{{"entities": {{"{}": {{"dtype": "str"}}}}}}"#,
            "a".repeat(10_000)
        );
        insta::assert_snapshot!(refusal(&name), @"the schema has 10016 bytes, but the model takes at most 8 tokens; send a smaller schema");
        let largest = format!(
            r#"{{"classifications": [{{"task": "t", "labels": ["a", "{}"], "cls_threshold": 0.5}}]}}"#,
            "b".repeat(8 * 1024)
        );
        check_size(&serde_json::from_str(&largest).unwrap(), 4, 8).unwrap();
    }

    #[test]
    fn paths_do_not_grow_with_names() {
        let name = "é".repeat(500_000);
        let schema = format!(
            r#"{{"structures": {{"{name}": [{}]}}}}"#,
            vec![r#"{"name": "a"}"#; 1000].join(",")
        );
        let schema = serde_json::from_str(&schema).unwrap();
        let mut error = String::new();
        let bytes = allocation_counter::measure(|| {
            error = read(SchemaForm::Schema, &schema).unwrap_err().to_string();
        });
        assert!(bytes.bytes_total < 10_000_000, "{}", bytes.bytes_total);
        assert_eq!(
            error,
            format!(
                "expected different names in `schema.structures.{}…`, but found `a` twice",
                "é".repeat(40)
            )
        );
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let refusals = [
            r#"{}"#,
            r#"[]"#,
            r#"{"entities": []}"#,
            r#"{"entities": ["a", "a"]}"#,
            r#"{"entities": ["a"], "entity_attributes": {}}"#,
            r#"{"structures": {"order": {"fields": ["item"], "mode": "natural"}}}"#,
            r#"{"structures": {"order": [{"name": "item", "exclusive": true}]}}"#,
            r#"{"structures": {"order": ["item", "item::str"]}}"#,
            r#"{"structures": {"entities": ["item"]}}"#,
            r#"{"structures": {"order": ["item"]}, "relations": ["order"]}"#,
            r#"{"relations": {"in": {"threshold": 1.5}}}"#,
            r#"{"relations": {"in": {"dtype": "str"}}}"#,
            r#"{"classifications": [{"task": "mood", "labels": ["good"]}]}"#,
            r#"{"classifications": [{"task": "mood", "labels": ["good", "bad"], "top_k": 0}]}"#,
            r#"{"classifications": [{"task": "mood", "labels": ["good", "bad"], "examples": [["x", "fair"]]}]}"#,
        ];
        let refusals =
            refusals.map(|text| parsed(SchemaForm::Schema, text).unwrap_err().to_string());
        insta::assert_snapshot!(refusals.join("\n"), @r"
        expected `entities`, `structures`, `relations` or `classifications` in `schema`, but found none
        expected an object in `schema`, but found a list
        expected entries in `schema.entities`, but found none
        expected different names in `schema.entities`, but found `a` twice
        unknown field in `schema`: `entity_attributes`
        unknown field in `schema.structures.order`: `mode`
        unknown field in `schema.structures.order`: `exclusive`
        expected different names in `schema.structures.order`, but found `item` twice
        expected different names other than `entities`, `relation_extraction` in the schema, but found `entities` twice; rename one of them
        expected different names other than `entities`, `relation_extraction` in the schema, but found `order` twice; rename one of them
        expected a `schema.relations.in.threshold` from 0 to 1, but found 1.5
        expected no `dtype` in `schema.relations.in`, since relations have two ends
        expected at least 2 labels in `schema.classifications[0].labels`, but found 1
        expected a `top_k` of at least 1 in `schema.classifications[0]`
        expected a label of `mood` in `schema.classifications[0].examples`, but found `fair`
        ");
    }
}
