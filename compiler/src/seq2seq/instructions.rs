//! Task parameters in `config.json`, and the translations that T5 does by instruction.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::t5;
use crate::files::config::ConfigFile;
use kivu::{Error, Result, pipeline::seq2seq::Languages};

/// A translation entry in `task_specific_params`, such as `translation_en_to_de`.
pub struct Instruction {
    pub task: String,
    pub source: String,
    pub target: String,
    pub prefix: String,
}

/// Translations that T5 does by instruction, according to its config.
pub fn instructions(config: &ConfigFile) -> Result<Vec<Instruction>> {
    let instruction = |(task, of_task): (String, Value)| {
        let (source, target) = task.strip_prefix("translation_")?.split_once("_to_")?;
        let (source, target) = (source.to_owned(), target.to_owned());
        let prefix = of_task.get("prefix")?.as_str()?.to_owned();
        Some(Instruction {
            task,
            source,
            target,
            prefix,
        })
    };
    let all = if t5::is_described_by(config) {
        of_tasks(config)?
    } else {
        Map::new()
    };
    Ok(all.into_iter().filter_map(instruction).collect())
}

/// Languages for translation by instruction; all must have the same generation settings.
pub fn by_instructions(config: &ConfigFile, instructions: &[Instruction]) -> Result<Languages> {
    let of_tasks = of_tasks(config)?;
    let options_of = |task: &str| {
        let mut fields = of_tasks
            .get(task)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        fields.remove("prefix");
        fields
    };
    let mut pairs: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for Instruction {
        task,
        source,
        target,
        prefix,
    } in instructions
    {
        if options_of(task) != options_of(&instructions[0].task) {
            return Err(Error::model(format!(
                "`{task}` and `{}` of `task_specific_params` have different settings",
                instructions[0].task
            )));
        }
        pairs
            .entry(source.clone())
            .or_default()
            .insert(target.clone(), prefix.clone());
    }
    Ok(Languages::Instructions { pairs })
}

/// Task parameters in `config.json`.
pub fn of_tasks(config: &ConfigFile) -> Result<Map<String, Value>> {
    Ok(config.get("task_specific_params")?.unwrap_or_default())
}
