//! Bodies in the model hub's form, whose options clients put into `parameters`, or beside `inputs`.

use serde_json::{Map, Value};

use crate::bodies::inputs;
use kivu::{Error, Result, json, pipeline::seq2seq::Seq2SeqPipeline};

/// The parts of a body.
pub struct HubBody {
    inputs: Option<Value>,
    options: Map<String, Value>,
}

impl HubBody {
    /// Collects the options. The `truncation` of models that generate texts may also be a strategy's name.
    pub fn read(
        mut fields: Map<String, Value>,
        generator: Option<&Seq2SeqPipeline>,
    ) -> Result<Self> {
        let inputs = fields.remove("inputs");
        let mut options = match fields.remove("parameters") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(parameters)) => parameters,
            Some(other) => return Err(unexpected("parameters", "an object", &other)),
        };
        add_options(&mut options, fields)?;
        if options.contains_key("inputs") {
            return Err(
                Error::invalid("`parameters.inputs` is not supported").with_hint("send `inputs`")
            );
        }
        // As in the pipelines of `transformers`.
        match options.remove("truncation") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(truncation)) => {
                let truncate = Map::from_iter([("truncate".to_owned(), truncation.into())]);
                add_options(&mut options, truncate)
                    .map_err(|_| inputs::different("truncate", "truncation"))?;
            }
            Some(other) if generator.is_some() => {
                drop(options.insert("truncation".to_owned(), other))
            }
            Some(other) => return Err(unexpected("truncation", "a boolean", &other)),
        }
        Ok(Self { inputs, options })
    }

    /// A body with the options in `parameters`.
    pub fn in_parameters(self) -> Value {
        let options = Map::from_iter([("parameters".to_owned(), Value::Object(self.options))]);
        Self { options, ..self }.beside_inputs()
    }

    /// A body with the options beside `inputs`.
    pub fn beside_inputs(self) -> Value {
        let mut fields = self.options;
        fields.extend(self.inputs.map(|inputs| ("inputs".to_owned(), inputs)));
        Value::Object(fields)
    }

    /// The inputs, an object that gets the options.
    pub fn in_inputs(self) -> Result<Value> {
        match self.inputs {
            Some(Value::Object(mut inputs)) => {
                add_options(&mut inputs, self.options)?;
                Ok(Value::Object(inputs))
            }
            inputs => Err(unexpected(
                "inputs",
                "an object with `query` and `texts`",
                &inputs.unwrap_or_default(),
            )),
        }
    }
}

/// Adds options, none with another value than the same one has already.
fn add_options(options: &mut Map<String, Value>, others: Map<String, Value>) -> Result<()> {
    for (name, value) in others.into_iter().filter(|(_, value)| !value.is_null()) {
        if options
            .get(&name)
            .is_some_and(|found| !found.is_null() && *found != value)
        {
            return Err(inputs::different(&name, &format!("parameters.{name}")));
        }
        options.insert(name, value);
    }
    Ok(())
}

fn unexpected(field: &str, expected: &str, found: &Value) -> Error {
    Error::invalid(format!(
        "expected `{field}` to be {expected}, but found {}",
        json::kind(found)
    ))
}
