//! Prints all precisions of a model side by side.

use kivu_compiler::quality::table::{Figure, LabelFigures, Measured, Table, Wrong};

/// Wrong rows that are printed; `--json` has all.
const SHOWN: usize = 20;

/// The table as text.
pub fn lines(table: &Table) -> Vec<String> {
    let mut lines = vec![format!("{}, {} {}", table.name, table.rows, table.samples)];
    lines.extend(aligned(&precisions(&table.precisions)));
    // The last one is the smallest, which most people serve.
    if let Some(last) = table
        .precisions
        .last()
        .filter(|last| !last.labels.is_empty())
    {
        lines.push(format!("labels, {}", last.precision));
        lines.extend(aligned(&labels(&last.labels)));
    }
    if !table.wrong.is_empty() {
        lines.push("wrong rows".to_owned());
        lines.extend(aligned(&wrong(&table.wrong, &table.precisions)));
    }
    if let Some(more) = table
        .wrong
        .len()
        .checked_sub(SHOWN)
        .filter(|more| *more > 0)
    {
        lines.push(format!("  {more} more; `--json` has all"));
    }
    lines.extend(table.notes.iter().map(|note| format!("  note: {note}")));
    lines
}

fn precisions(precisions: &[Measured]) -> Vec<Vec<String>> {
    let figures = precisions.first().map_or(&[][..], |first| &first.figures);
    let mut head = vec!["precision".to_owned()];
    for figure in figures {
        head.push(figure.name.to_owned());
        head.extend(figure.interval.map(|_| "95 % interval".to_owned()));
    }
    head.extend(["size", "rows/s"].map(str::to_owned));
    let row = |measured: &Measured| {
        let mut row = vec![measured.precision.clone()];
        for (figure, first) in measured.figures.iter().zip(figures) {
            row.push(figure.value.map_or_else(none, |value| shown(figure, value)));
            if first.interval.is_some() {
                row.push(figure.interval.map_or_else(none, |[low, high]| {
                    format!("{} to {}", shown(figure, low), shown(figure, high))
                }));
            }
        }
        row.push(format!("{:.1} MB", measured.bytes as f64 / 1e6));
        row.push(
            measured
                .rows_per_second
                .map_or_else(none, |speed| format!("{speed:.0}")),
        );
        row
    };
    [head]
        .into_iter()
        .chain(precisions.iter().map(row))
        .collect()
}

fn labels(labels: &[LabelFigures]) -> Vec<Vec<String>> {
    let head = ["label", "rows", "found", "precision", "recall", "F1"].map(str::to_owned);
    let row = |label: &LabelFigures| {
        let share = |share: Option<f64>| share.map_or_else(none, percent);
        vec![
            label.label.clone(),
            label.rows.to_string(),
            label.found.to_string(),
            share(label.precision),
            share(label.recall),
            percent(label.f1),
        ]
    };
    [head.to_vec()]
        .into_iter()
        .chain(labels.iter().map(row))
        .collect()
}

fn wrong(wrong: &[Wrong], precisions: &[Measured]) -> Vec<Vec<String>> {
    let mut head = ["row", "expected"].map(str::to_owned).to_vec();
    head.extend(precisions.iter().map(|measured| measured.precision.clone()));
    let row = |wrong: &Wrong| {
        let mut row = vec![wrong.row.to_string(), wrong.expected.clone()];
        row.extend(
            precisions
                .iter()
                .filter_map(|measured| wrong.found.get(&measured.precision).cloned()),
        );
        row
    };
    [head]
        .into_iter()
        .chain(wrong.iter().take(SHOWN).map(row))
        .collect()
}

/// Rows with columns of one width each.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("  {cell:width$}", width = width(column)));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn shown(figure: &Figure, value: f64) -> String {
    match figure.is_share {
        true => percent(value),
        false => format!("{value:.4}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn none() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn precisions_labels_and_wrong_rows_are_columns() {
        let measured = |precision: &str, accuracy: f64| Measured {
            precision: precision.to_owned(),
            figures: vec![Figure {
                name: "accuracy",
                value: Some(accuracy),
                interval: Some([accuracy - 0.1, accuracy + 0.05]),
                is_share: true,
            }],
            bytes: 1_250_000,
            rows_per_second: Some(99.6),
            labels: vec![LabelFigures {
                label: "café".to_owned(),
                rows: 30,
                found: 0,
                precision: None,
                recall: Some(0.0),
                f1: 0.0,
            }],
        };
        let found = BTreeMap::from([
            ("fp32".to_owned(), "bar".to_owned()),
            ("int8".to_owned(), "café".to_owned()),
        ]);
        let wrong = (1..=22).map(|row| Wrong {
            row,
            expected: "café".to_owned(),
            found: found.clone(),
        });
        let table = Table {
            name: "places".to_owned(),
            samples: "texts with labels",
            rows: 100,
            precisions: vec![measured("fp32", 0.9), measured("int8", 0.895)],
            wrong: wrong.collect(),
            notes: vec!["something".to_owned()],
        };
        let lines = lines(&table);
        insta::assert_snapshot!([&lines[..9], &lines[lines.len() - 3..]].concat().join("\n"), @r"
        places, 100 texts with labels
          precision  accuracy  95 % interval     size    rows/s
          fp32       90.0 %    80.0 % to 95.0 %  1.2 MB  100
          int8       89.5 %    79.5 % to 94.5 %  1.2 MB  100
        labels, int8
          label  rows  found  precision  recall  F1
          café   30    0      –          0.0 %   0.0 %
        wrong rows
          row  expected  fp32  int8
          20   café      bar   café
          2 more; `--json` has all
          note: something
        ");
    }
}
