//! `kivu` without arguments, on a terminal: lists the models that can be served, and serves the chosen one.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use super::{
    library::{
        catalogue::{self, Known, catalogue},
        models,
    },
    server,
    terminal::{print, print_aside},
};
use kivu::{Error, Result, cloud::Cloud, config::Config};

/// Whether somebody can choose a model.
pub fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Lists the models on this machine and the recipes, serves the one that is chosen, and opens its page.
pub fn run(config: Config, cloud: Cloud) -> Result<ExitCode> {
    let rows = models::rows(&config);
    let is_built = |name: &str| rows.iter().any(|row| row.name == name);
    let known = catalogue()?;
    let is_recipe = |model: &&Known| !model.name.contains('/') && !is_built(&model.name);
    let recipes: Vec<&Known> = known.iter().filter(is_recipe).collect();
    let built = rows.iter().map(|row| row.name.as_str());
    let names: Vec<&str> = built
        .chain(recipes.iter().map(|model| model.name.as_str()))
        .collect();
    if !rows.is_empty() {
        print("Models on this machine:\n")?;
        numbered(&models::lines(&rows), 1)?;
        print("")?;
    }
    if !recipes.is_empty() {
        print("Models that can be built:\n")?;
        numbered(&catalogue::lines(recipes.into_iter()), rows.len() + 1)?;
        print("")?;
    }
    print(
        "`kivu models --all` lists more, and any other from the Hugging Face Hub is served by `kivu serve ORG/NAME`.",
    )?;
    let default = names
        .iter()
        .position(|name| *name == DEFAULT)
        .unwrap_or_default();
    loop {
        print_aside(&format!(
            "Enter serves `{}`; a number serves another model, and Ctrl-C none:",
            names[default]
        ));
        let mut line = String::new();
        let read = io::stdin()
            .read_line(&mut line)
            .map_err(Error::io("cannot read the terminal"))?;
        if read == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(name) = chosen(&line, &names, default) {
            return server::run(server::Arguments::of(name), config, cloud);
        }
        print_aside(&format!("expected a number from 1 to {}", names.len()));
    }
}

/// The model that Enter serves, if it is listed.
const DEFAULT: &str = "minilm";

/// Prints a table's head, and its rows with their numbers.
fn numbered(lines: &[String], first: usize) -> Result<()> {
    for (number, line) in lines.iter().enumerate() {
        match number {
            0 => print(&format!("     {line}"))?,
            _ => print(&format!("{:>3}  {line}", first + number - 1))?,
        }
    }
    Ok(())
}

/// The model that a line chooses, by its number or name.
fn chosen<'a>(line: &str, names: &[&'a str], default: usize) -> Option<&'a str> {
    let line = line.trim();
    let by_name = || names.iter().find(|name| **name == line).copied();
    match line.parse::<usize>() {
        _ if line.is_empty() => names.get(default).copied(),
        Ok(number) => names.get(number.checked_sub(1)?).copied(),
        Err(_) => by_name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_chosen_by_number_or_name_or_by_default() {
        let of = |line| chosen(line, &["a", "b"], 1);
        assert_eq!(
            ["\n", "1\n", " 2", "a"].map(of),
            [Some("b"), Some("a"), Some("b"), Some("a")]
        );
        assert_eq!(["0", "3", "-1", "c"].map(of), [None; 4]);
    }
}
