//! `kivu run`: a model's results for texts on the command line or standard input.

use std::{
    io::{self, BufRead, IsTerminal},
    process::ExitCode,
};

use clap::Args;
use tokio::runtime::Runtime;

use super::{
    batch::{model_threads, require_options_of},
    task_options::GivenOptions,
};
use crate::{
    examples::examples,
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, open},
    terminal::{is_read, print_aside},
};
use kivu::{Error, Result, cloud::Cloud, config::Config, model::Pipeline};
use kivu_jobs::{Prediction, Predictions, TextPredictor};

/// Lines from a file or a pipe that run together.
const LINES_PER_RUN: usize = 256;
/// Some programs write it at the start of UTF-8 files.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Maximum bytes in a line from standard input.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Run a model on texts, and print the results
///
/// Generated texts are printed as they are, with their line breaks, and ranked texts with rank and score, the best first;
/// all other results, and with `--json` all results, are JSON objects, one line for each text. A text that fails has a
/// line with its error, and the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = examples("run"))]
pub struct Arguments {
    /// A model in kivu.toml, or a name as in `kivu serve`; missing models are built
    model: String,
    /// Texts, or `-` for lines from standard input [default: -]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// Print generated and ranked texts as JSON objects, too, in the order of the texts
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: GivenOptions<false>,
    #[command(flatten)]
    pub build: BuildArguments,
}

pub fn run(arguments: Arguments, config: Config, cloud: Cloud) -> Result<ExitCode> {
    interruptible(move || run_texts(arguments, config, &cloud)).map(Ended::code)
}

fn run_texts(arguments: Arguments, mut config: Config, cloud: &Cloud) -> Result<ExitCode> {
    let Arguments {
        model,
        texts,
        json,
        options: GivenOptions(parameters),
        build,
    } = arguments;
    let reads_lines = texts.is_empty() || texts == ["-"];
    if !reads_lines && texts.iter().any(|text| text == "-") {
        return Err(Error::config(
            "`-` stands for all lines of standard input, but there are other texts, too",
        )
        .with_hint("use either"));
    }
    let build = build.options(&config);
    let model = open(Some(&model), &build, &mut config, cloud)?;
    require_options_of(&model, &parameters)?;
    let mut runs = Runs {
        runtime: model_threads(&config)?,
        ranks: !json && matches!(model.pipeline, Pipeline::Ranking(_)),
        predictor: TextPredictor::new(&model, &parameters)?,
        json,
        failed: false,
        is_read: true,
        truncated: 0,
    };
    match reads_lines {
        true => runs.standard_input()?,
        false => runs.print(texts)?,
    }
    if runs.truncated > 0 {
        print_aside(&format!(
            "note: texts truncated to the model's token limit: {}",
            runs.truncated
        ));
    }
    Ok(if runs.failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

struct Runs {
    runtime: Runtime,
    predictor: TextPredictor,
    json: bool,
    /// Whether texts are printed in the order of their scores.
    ranks: bool,
    /// Whether a text has an error.
    failed: bool,
    /// Whether standard output is open.
    is_read: bool,
    /// Texts that were truncated.
    truncated: u64,
}

impl Runs {
    /// Runs the model on all lines; in a terminal, on each line as it is entered.
    fn standard_input(&mut self) -> Result<()> {
        let mut input = io::stdin().lock();
        let is_terminal = input.is_terminal();
        if is_terminal {
            print_aside("one text per line; Ctrl-D ends");
        }
        let size = match (self.ranks, is_terminal) {
            (true, _) => usize::MAX,
            (false, true) => 1,
            (false, false) => LINES_PER_RUN,
        };
        let mut is_begun = false;
        loop {
            let mut lines = Vec::new();
            while lines.len() < size {
                let Some(mut line) = next_line(&mut input)? else {
                    break;
                };
                if !is_begun && line.starts_with(BYTE_ORDER_MARK) {
                    line.remove(0);
                }
                is_begun = true;
                lines.push(line);
            }
            if lines.is_empty() || !self.is_read {
                return Ok(());
            }
            self.print(lines)?;
        }
    }

    fn print(&mut self, texts: Vec<String>) -> Result<()> {
        let mut ranked = if self.ranks {
            texts.clone()
        } else {
            Vec::new()
        };
        let Predictions {
            results: predictions,
            truncated,
        } = self.runtime.block_on(self.predictor.predict(texts))?;
        self.failed |= predictions.iter().any(Result::is_err);
        self.truncated += truncated;
        if !self.ranks {
            return predictions
                .into_iter()
                .try_for_each(|prediction| self.show(&self.line(prediction)));
        }
        let (mut scores, mut failed) = (Vec::new(), Vec::new());
        for (text, prediction) in ranked.drain(..).zip(predictions) {
            match prediction {
                Ok(Prediction {
                    score: Some(score), ..
                }) => scores.push((score, text)),
                other => failed.push(self.line(other)),
            }
        }
        // Equal scores stay in the order of the texts.
        scores.sort_by(|(left, _), (right, _)| right.total_cmp(left));
        for (number, (score, text)) in scores.iter().enumerate() {
            self.show(&format!("{:>3}  {score:.4}  {text}", number + 1))?;
        }
        failed.iter().try_for_each(|line| self.show(line))
    }

    /// Prints a line, unless nobody reads lines any more.
    fn show(&mut self, line: &str) -> Result<()> {
        if self.is_read {
            self.is_read = is_read(line)?;
        }
        Ok(())
    }

    fn line(&self, prediction: Result<Prediction>) -> String {
        match prediction {
            Ok(Prediction {
                text: Some(text), ..
            }) if !self.json => text,
            Ok(Prediction { json, .. }) => json,
            Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
        }
    }
}

/// The next line without its end.
fn next_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    let mut limited = io::Read::take(input, MAX_LINE_BYTES as u64 + 1);
    limited
        .read_until(b'\n', &mut line)
        .map_err(Error::io("cannot read standard input"))?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() > MAX_LINE_BYTES {
        return Err(Error::config(format!(
            "expected lines of at most {MAX_LINE_BYTES} bytes on standard input, but found more"
        )));
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|error| {
        Error::config(format!(
            "expected UTF-8 on standard input, but found the byte 0x{:02x}",
            line.get(error.valid_up_to()).copied().unwrap_or_default()
        ))
        .with_hint("convert the file, such as with `iconv`")
    })?;
    Ok(Some(text.to_owned()))
}
