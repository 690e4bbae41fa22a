//! Schemas in front of a text, as the package `gliner2` writes them: a name, and labels behind it.

use kivu_base::error::{Error, Result};
use kivu_text as tokenizer;
use kivu_text::{Tokenizer, WordForm, WordPrompt};

/// The token in front of a schema's name.
pub const SCHEMA: &str = "[P]";
/// The token before each entity label.
pub const ENTITY: &str = "[E]";
/// The token before each field of a structure.
pub const FIELD: &str = "[C]";
/// The token before each end of a relation.
pub const RELATION_END: &str = "[R]";
/// The token before each label of a classification.
pub const LABEL: &str = "[L]";
/// The token between schemas.
pub const SCHEMA_SEPARATOR: &str = "[SEP_STRUCT]";
/// The token between the schemas and the text.
pub const SEPARATOR: &str = "[SEP_TEXT]";
/// The token before a label's description.
pub const DESCRIPTION: &str = "[DESCRIPTION]";
/// The tokens before an example, and before its label.
pub const EXAMPLE: [&str; 2] = ["[EXAMPLE]", "[OUTPUT]"];

/// The schema of entities.
pub const ENTITIES: &str = "entities";
/// The schema of a classification whose request has no name for it.
pub const CLASSIFICATION: &str = "classification";

/// A schema.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a> {
    /// The token in front of the name.
    pub token: &'a str,
    /// The schema's name, such as [`ENTITIES`].
    pub name: &'a str,
    /// The token before each label.
    pub label_token: &'a str,
    /// The labels, in the order of the prompt.
    pub labels: &'a [String],
    /// The token between the schema and the text.
    pub separator: &'a str,
}

impl Schema<'_> {
    /// The schema's tokens, for texts with at most `max_tokens` tokens, which include them.
    pub fn prompt(&self, tokenizer: &Tokenizer, max_tokens: usize) -> Result<WordPrompt> {
        let Self {
            token,
            name,
            label_token,
            labels,
            separator,
        } = *self;
        let size = labels.iter().map(String::len).sum::<usize>() + name.len();
        if size > tokenizer::reach(max_tokens) {
            return Err(Error::too_large(format!(
                "the labels have {size} bytes, but the model takes at most {max_tokens} tokens"
            ))
            .with_hint("send fewer or shorter labels"));
        }
        // The model finds the name and the labels by the tokens in front of them.
        let reserved: Vec<u32> = [token, label_token, separator]
            .iter()
            .filter_map(|token| tokenizer.id(token))
            .collect();
        let checked = |text: &str, what: &str| {
            let ids = tokenizer.ids(text)?;
            match ids.is_empty() || ids.iter().any(|id| reserved.contains(id)) {
                false => Ok(ids),
                true if ids.is_empty() => Err(Error::invalid(format!(
                    "{what} `{}` has no tokens",
                    text.escape_default()
                ))),
                true => Err(Error::invalid(format!(
                    "{what} `{}` contains `{token}`, `{label_token}` or `{separator}`, which the model reads as its own",
                    text.escape_default()
                ))
                .with_hint("rename it")),
            }
        };
        let [opening, closing] = ["(", ")"].map(|bracket| tokenizer.ids(bracket));
        let (opening, closing) = (opening?, closing?);
        let mut ids = opening.clone();
        ids.extend(
            tokenizer
                .ids(token)?
                .iter()
                .chain(&checked(name, "the name")?),
        );
        ids.extend(&opening);
        let marker = tokenizer.ids(label_token)?;
        for label in labels {
            ids.extend(marker.iter().chain(&checked(label, "the label")?));
        }
        ids.extend(closing.iter().chain(&closing));
        ids.extend(tokenizer.ids(separator)?);
        Ok(WordPrompt {
            ids,
            words: Vec::new(),
            max_words: max_tokens,
            form: WordForm::Gliner2,
        })
    }
}
