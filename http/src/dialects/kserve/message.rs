//! KServe v2 messages: JSON, optionally followed by tensor bytes (the binary tensor extension).

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE},
    response::IntoResponse,
};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, MapAccess, SeqAccess},
};
use serde_json::{Map, Value, json};

use crate::bodies::{
    body_memory::RequestMemory,
    rejection::ApiResult,
    request::{self, RequestBody},
    response::{by_model, model_headers},
};
use kivu::{
    Error, Result,
    error::quoted,
    json::{self, Budget, FromJson, Kind},
    pipeline::{Usage, generation::GenerationOptions},
    tensor::{ElementType, Elements, read_byte_strings, read_numbers},
};

/// JSON length in bytes; the tensors follow in JSON order.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const BINARY_SIZE: &str = "binary_data_size";

#[derive(Debug)]
pub enum InputElements {
    /// `INT32` or `INT64`.
    Integers(Vec<i64>),
    /// `BYTES` in UTF-8.
    Texts(Vec<String>),
}

impl Default for InputElements {
    fn default() -> Self {
        Self::Integers(Vec::new())
    }
}

/// A model's output, and its run.
#[derive(Debug)]
pub struct Output {
    pub shape: Vec<usize>,
    pub elements: Elements,
    pub usage: Usage,
}

/// Elements in JSON; byte strings are texts.
struct JsonElements<'a>(&'a Elements);

// The schema of `JsonElements`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum OutputElements {
    /// `FP32`.
    Floats(Vec<f32>),
    /// `INT32` or `INT64`.
    Integers(Vec<i64>),
    /// `BYTES` in UTF-8.
    Texts(Vec<String>),
}

impl Serialize for JsonElements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Elements::Fp32(values) => values.serialize(serializer),
            Elements::Int32(values) => values.serialize(serializer),
            Elements::Int64(values) => values.serialize(serializer),
            Elements::Bytes(texts) => {
                serializer.collect_seq(texts.iter().map(|text| String::from_utf8_lossy(text)))
            }
        }
    }
}

/// Input tensors, and the requested outputs' names.
// [`InferRequest::parse`] reads the elements of the inputs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct InferRequest {
    /// An identifier, which the response repeats.
    pub id: Option<String>,
    /// The input tensors, as `GET /v2/models/{model}` lists them.
    pub inputs: Vec<InferInput>,
    /// The same model as in the path.
    pub model_name: Option<String>,
    /// `1`, or empty.
    pub model_version: Option<String>,
    /// The output tensors to return; all by default.
    outputs: Option<Vec<OutputRequest>>,
    /// The task's parameters, and `binary_data_output`: whether all outputs are returned as bytes after the JSON.
    #[serde(default, deserialize_with = "json::fields")]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub parameters: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `name`, `shape` and `datatype`")]
pub struct InferInput {
    /// The tensor's name.
    pub name: String,
    /// The tensor's dimensions.
    pub shape: Vec<usize>,
    /// `BYTES`, `INT32` or `INT64`.
    datatype: String,
    /// `binary_data_size`: the number of bytes after the JSON in place of `data`.
    #[serde(default, deserialize_with = "json::fields")]
    #[schemars(with = "Option<Map<String, Value>>")]
    parameters: Map<String, Value>,
    /// The elements in nested lists, unless they follow as binary data.
    #[schemars(with = "Option<Value>")]
    data: Option<Data>,
    #[serde(skip)]
    pub elements: InputElements,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `name`")]
#[schemars(rename = "InferOutput")]
struct OutputRequest {
    /// The tensor's name.
    name: String,
    /// `binary_data`: whether the tensor is returned as bytes after the JSON.
    #[serde(default, deserialize_with = "json::fields")]
    #[schemars(with = "Option<Map<String, Value>>")]
    parameters: Map<String, Value>,
}

impl RequestBody for InferRequest {
    const FIELDS: &str = "KServe v2.inference";
}

impl InferRequest {
    /// Parses a message, and checks every length in it.
    ///
    /// The request holds its elements' memory until its end.
    pub fn parse(headers: &HeaderMap, body: &[u8], memory: &Arc<RequestMemory>) -> Result<Self> {
        /// Memory for a binary element, as a multiple of its length prefix.
        const MAX_FACTOR: usize = 12;
        let length = match headers.get(JSON_LENGTH) {
            None => body.len(),
            Some(length) => length
                .to_str()
                .ok()
                .and_then(|length| length.parse().ok())
                .ok_or_else(|| {
                    Error::malformed(format!(
                        "expected a number of bytes in `{JSON_LENGTH}`, but found `{}`",
                        length.as_bytes().escape_ascii()
                    ))
                })?,
        };
        let Some((json, mut bytes)) = body.split_at_checked(length) else {
            return Err(Error::malformed(format!(
                "expected {length} bytes of JSON, as given by `{JSON_LENGTH}`, but the body has {}",
                body.len()
            )));
        };
        let binary = bytes.len().saturating_mul(MAX_FACTOR);
        let (size, held) = (body.len().saturating_add(binary), Arc::clone(memory));
        memory.resize(size)?;
        let hold = move |values| held.resize(size.saturating_add(values));
        let budget = Budget::new(json.len(), usize::MAX).held_by(hold);
        let mut request: Self = request::parse(json, budget)?;
        for input in &mut request.inputs {
            input.elements = input.parse(&mut bytes)?;
        }
        let mut names = HashSet::new();
        for input in &request.inputs {
            if !names.insert(&input.name) {
                return Err(Error::invalid(format!(
                    "expected each input once, but found `{}` twice",
                    input.name
                )));
            }
        }
        if !bytes.is_empty() {
            return Err(Error::invalid(format!(
                "expected no bytes after the last input, but found {} more",
                bytes.len()
            )));
        }
        Ok(request)
    }

    pub fn parameter<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.parameters.get(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let mut found: BTreeMap<String, T> = request::from_value(json!({ name: value }))?;
        Ok(found.remove(name))
    }

    /// Task parameters. Unknown ones are ignored, since clients also send other servers' parameters.
    pub fn task_parameters<T: DeserializeOwned>(&self) -> Result<T> {
        request::from_value(Value::Object(self.parameters.clone()))
    }

    /// Generation options. Clients send parameters for other servers as well, which are ignored.
    pub fn generation_options(&self) -> Result<GenerationOptions> {
        let known = GenerationOptions::names();
        let mut options = self.parameters.clone();
        options.retain(|name, _| known.contains(name));
        request::from_value(Value::Object(options))
    }

    /// The parameters of a task that takes labels, which are a tensor.
    pub fn parameters_with<T: DeserializeOwned>(&self, labels: Vec<String>) -> Result<T> {
        let mut parameters = self.parameters.clone();
        parameters.remove("labels");
        parameters.insert("candidate_labels".to_owned(), labels.into());
        request::from_value(Value::Object(parameters))
    }

    pub fn input(&self, name: &str) -> Option<&InferInput> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// The requested output names among `known`, or all of `default` if the request names none.
    pub fn requested<'a>(&'a self, known: &[&'a str], default: &[&'a str]) -> Result<Vec<&'a str>> {
        let Some(outputs) = self.outputs.as_ref().filter(|outputs| !outputs.is_empty()) else {
            return Ok(default.to_vec());
        };
        let mut names: Vec<&str> = Vec::new();
        for OutputRequest { name, .. } in outputs {
            if !known.contains(&name.as_str()) {
                let found = name.escape_default();
                return Err(Error::invalid(match known {
                    [only] => format!("expected the output `{only}`, but found `{found}`"),
                    known => format!("unknown output `{found}`; the model has {}", quoted(known)),
                }));
            }
            if names.contains(&name.as_str()) {
                return Err(Error::invalid(format!(
                    "expected the output `{name}` once, but found it several times"
                )));
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Whether an output is requested as binary data.
    pub fn is_binary_requested(&self, name: &str) -> Result<bool> {
        let all_binary = self.parameter("binary_data_output")?.unwrap_or(false);
        let output = self
            .outputs
            .iter()
            .flatten()
            .find(|output| output.name == name);
        let Some(output) = output else {
            return Ok(all_binary);
        };
        match output.parameters.get("binary_data") {
            Some(Value::Bool(is_binary)) => Ok(*is_binary),
            None | Some(Value::Null) => Ok(all_binary),
            Some(_) => Err(Error::invalid(format!(
                "expected a boolean in the parameter `binary_data` of `{name}`, but found another value"
            ))),
        }
    }
}

impl InferInput {
    fn parse(&mut self, bytes: &mut &[u8]) -> Result<InputElements> {
        let Self {
            name,
            shape,
            datatype,
            parameters,
            data,
            ..
        } = self;
        /// No tensor has as many, and errors list them.
        const MAX_DIMENSIONS: usize = 8;
        let wrong = |found: String| Err(Error::invalid(format!("expected `{name}` {found}")));
        if shape.len() > MAX_DIMENSIONS {
            return wrong(format!(
                "of at most {MAX_DIMENSIONS} dimensions, but found {}",
                shape.len()
            ));
        }
        let count = shape
            .iter()
            .try_fold(1_usize, |product, side| product.checked_mul(*side));
        let Some(count) = count else {
            return wrong(format!(
                "of a representable size, but found shape {shape:?}"
            ));
        };
        let size = parameters.get(BINARY_SIZE).filter(|size| !size.is_null());
        let elements = match (size, data.take()) {
            (Some(size), None) => {
                let number = size.as_u64().and_then(|size| usize::try_from(size).ok());
                let Some((own, rest)) = number.and_then(|number| bytes.split_at_checked(number))
                else {
                    return wrong(format!(
                        "with `{BINARY_SIZE}` of at most the {} remaining bytes, but found {size}",
                        bytes.len()
                    ));
                };
                *bytes = rest;
                from_bytes(name, datatype, own)?
            }
            (None, Some(data)) => {
                if !data.fits(shape) {
                    return wrong(format!(
                        "with `data` in one list, or in lists of shape {shape:?}, but found other lists"
                    ));
                }
                from_json(name, datatype, data.values)?
            }
            (Some(_), Some(_)) => return wrong("with `data` or with bytes, but found both".into()),
            (None, None) => return wrong("with `data` or with bytes, but found neither".into()),
        };
        let found = match &elements {
            InputElements::Integers(values) => values.len(),
            InputElements::Texts(texts) => texts.len(),
        };
        if found != count {
            return wrong(format!(
                "of shape {shape:?} with {count} elements, but found {found}"
            ));
        }
        Ok(elements)
    }
}

/// Elements in JSON: one, or nested lists.
#[derive(Debug)]
struct Data {
    values: Values,
    /// The lists' lengths from the outer to the inner ones; `None` if lists beside each other differ.
    lengths: Option<Vec<usize>>,
}

#[derive(Debug, Default)]
enum Values {
    #[default]
    Empty,
    Integer(i64),
    Text(String),
    Integers(Vec<i64>),
    Texts(Vec<String>),
    /// Elements of several types, or of another one.
    Other,
}

impl Data {
    fn one(values: Values) -> Self {
        Self {
            values,
            lengths: Some(Vec::new()),
        }
    }

    /// Whether the lists have a tensor's shape, apart from sides of length 1, or are a single one.
    fn fits(&self, shape: &[usize]) -> bool {
        let sides = |all: &[usize]| -> Vec<usize> {
            all.iter().copied().filter(|side| *side != 1).collect()
        };
        let lengths = self.lengths.as_deref().map(sides);
        lengths.is_some_and(|lengths| lengths.len() <= 1 || lengths == sides(shape))
    }
}

impl Values {
    fn append(&mut self, item: Self) {
        *self = match (mem::take(self), item) {
            (all, Self::Empty) => all,
            (Self::Empty, Self::Integer(value)) => Self::Integers(vec![value]),
            (Self::Empty, Self::Text(text)) => Self::Texts(vec![text]),
            (Self::Empty, item) => item,
            (Self::Integers(mut all), Self::Integer(value)) => {
                all.push(value);
                Self::Integers(all)
            }
            (Self::Texts(mut all), Self::Text(text)) => {
                all.push(text);
                Self::Texts(all)
            }
            (Self::Integers(mut all), Self::Integers(more)) => {
                all.extend(more);
                Self::Integers(all)
            }
            (Self::Texts(mut all), Self::Texts(more)) => {
                all.extend(more);
                Self::Texts(all)
            }
            _ => Self::Other,
        };
    }
}

impl<'de> FromJson<'de> for Data {
    fn scalar(value: Value) -> Self {
        Self::one(value.as_i64().map_or(Values::Other, Values::Integer))
    }

    fn text(text: Cow<'_, str>) -> Self {
        Self::one(Values::Text(text.into_owned()))
    }

    fn list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let (mut values, mut inner, mut count) = (Values::Empty, None, 0);
        while let Some(item) = items.next_element::<Self>()? {
            values.append(item.values);
            let first = inner.get_or_insert_with(|| item.lengths.clone());
            if *first != item.lengths {
                *first = None;
            }
            count += 1;
        }
        let inner = inner.unwrap_or(Some(Vec::new()));
        let lengths = inner.map(|inner| [vec![count], inner].concat());
        Ok(Self { values, lengths })
    }

    fn object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        Kind::object(fields).map(|_| Self::one(Values::Other))
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::from_any(deserializer)
    }
}

fn from_json(name: &str, datatype: &str, values: Values) -> Result<InputElements> {
    match (datatype, values) {
        ("INT32" | "INT64", Values::Empty) => Ok(InputElements::Integers(Vec::new())),
        ("INT32" | "INT64", Values::Integer(value)) => Ok(InputElements::Integers(vec![value])),
        ("INT32" | "INT64", Values::Integers(values)) => Ok(InputElements::Integers(values)),
        ("BYTES", Values::Empty) => Ok(InputElements::Texts(Vec::new())),
        ("BYTES", Values::Text(text)) => Ok(InputElements::Texts(vec![text])),
        ("BYTES", Values::Texts(texts)) => Ok(InputElements::Texts(texts)),
        ("INT32" | "INT64" | "BYTES", _) => Err(Error::invalid(format!(
            "`{name}` has elements that are not {datatype}"
        ))),
        (other, _) => Err(unsupported(name, other)),
    }
}

fn from_bytes(name: &str, datatype: &str, bytes: &[u8]) -> Result<InputElements> {
    let elements = match datatype {
        "INT32" => read_numbers(bytes, |value| i32::from_le_bytes(value).into())
            .map(InputElements::Integers),
        "INT64" => read_numbers(bytes, i64::from_le_bytes).map(InputElements::Integers),
        "BYTES" => {
            let strings = read_byte_strings(bytes).into_iter().flatten().enumerate();
            let texts = strings.map(|(index, bytes)| {
                String::from_utf8(bytes).map_err(|_| {
                    Error::invalid(format!(
                        "expected `{name}` in UTF-8, but found other bytes in element {index}"
                    ))
                })
            });
            Some(InputElements::Texts(texts.collect::<Result<_>>()?))
        }
        other => return Err(unsupported(name, other)),
    };
    elements.ok_or_else(|| {
        Error::invalid(format!(
            "expected `{name}` with whole elements of {datatype}, but found a part of one"
        ))
    })
}

fn unsupported(name: &str, datatype: &str) -> Error {
    Error::invalid(format!(
        "expected `{name}` as INT32, INT64 or BYTES, but found `{}`",
        datatype.escape_default()
    ))
}

#[derive(Serialize, JsonSchema)]
pub struct InferResponse<'a> {
    /// The request's `id`, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    /// The name of the model that ran.
    model_name: &'a str,
    /// Always `1`.
    model_version: &'a str,
    /// The requested tensors.
    outputs: Vec<OutputTensor<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct OutputTensor<'a> {
    /// The tensor's name, as in the model's metadata.
    name: &'a str,
    /// `FP32`, `INT32`, `INT64` or `BYTES`.
    datatype: ElementType,
    /// Dimensions, the first one for texts.
    shape: &'a [usize],
    /// Only for a tensor that follows as binary data.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryParameters>,
    /// The elements in one list, in row-major order; absent if they follow as binary data.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OutputElements>")]
    data: Option<JsonElements<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct BinaryParameters {
    /// Bytes of the tensor after the JSON.
    binary_data_size: usize,
}

/// Refuses a response with too many numbers, including the padding to the longest row.
pub fn check_padded(numbers: usize, limit: usize) -> Result<()> {
    if numbers <= limit {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "expected a response of at most {limit} numbers, but found {numbers}, since rows are \
         padded to the longest"
    ))
    .with_hint("send fewer rows, or rows of similar lengths, at once"))
}

/// A response with outputs in the JSON or, as far as they are requested as binary data, after it.
pub fn respond(
    model: &str,
    version: &str,
    request: &InferRequest,
    outputs: &[(&str, Output)],
) -> ApiResult {
    // One run makes all outputs.
    let usage = outputs
        .first()
        .map(|(_, output)| output.usage.clone())
        .unwrap_or_default();
    let (mut tensors, mut all_bytes, mut has_bytes) = (Vec::new(), Vec::new(), false);
    for (name, output) in outputs {
        let bytes = request
            .is_binary_requested(name)?
            .then(|| output.elements.to_bytes());
        tensors.push(OutputTensor {
            name,
            datatype: output.elements.element_type(),
            shape: &output.shape,
            parameters: bytes.as_ref().map(|bytes| BinaryParameters {
                binary_data_size: bytes.len(),
            }),
            data: bytes.is_none().then_some(JsonElements(&output.elements)),
        });
        has_bytes |= bytes.is_some();
        all_bytes.extend(bytes.unwrap_or_default());
    }
    let id = request.id.as_deref();
    let answer = InferResponse {
        id,
        model_name: model,
        model_version: version,
        outputs: tensors,
    };
    if !has_bytes {
        return Ok(by_model(&answer, &usage));
    }
    let mut body = serde_json::to_vec(&answer)
        .map_err(|error| Error::inference_because("cannot write the response", error))?;
    let json_length = HeaderValue::from(body.len());
    body.extend(all_bytes);
    let binary = HeaderValue::from_static("application/octet-stream");
    let headers = [(CONTENT_TYPE, binary), (JSON_LENGTH, json_length)];
    Ok((model_headers(&usage), headers, body).into_response())
}
