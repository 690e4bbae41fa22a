//! Relaxed instructions in the module: which of them it has, and a module without any.

use std::error::Error;

use wasmparser::{Operator, Parser, Payload};

/// An instruction on vectors, whose number has two bytes in LEB128.
type Instruction = [u8; 3];

const VECTOR: u8 = 0xfd;
const PMIN: Instruction = [VECTOR, 0xea, 0x01];
const PMAX: Instruction = [VECTOR, 0xeb, 0x01];
/// In place of an instruction with three operands, two are dropped, and an instruction that does nothing follows.
const FIRST_OPERAND: Instruction = [0x1a, 0x1a, 0x01];
/// The numbers of relaxed instructions.
const RELAXED: std::ops::Range<u32> = 0x100..0x130;

/// Restores exact comparisons: the compiler replaces them by relaxed ones, whose results for NaN depend on the host.
pub(crate) fn with_exact_comparisons(module: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    replaced(module, |operator| match operator {
        Operator::F32x4RelaxedMin => Some(PMIN),
        Operator::F32x4RelaxedMax => Some(PMAX),
        _ => None,
    })
}

/// Replaces multiply-adds and dot products by their first operand, so that hosts without relaxed instructions accept the
/// module. The engine tries both out before it uses them, and then finds that their results are wrong.
pub(crate) fn without_relaxed(module: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let baseline = replaced(module, |operator| match operator {
        Operator::F32x4RelaxedMadd | Operator::I32x4RelaxedDotI8x16I7x16AddS => Some(FIRST_OPERAND),
        _ => None,
    })?;
    each_instruction(&baseline, |operator, instruction| match is_relaxed(instruction) {
        true => Err(format!("expected no other relaxed instruction, but found {operator:?}").into()),
        false => Ok(()),
    })?;
    Ok(baseline)
}

/// A copy with other instructions of the same length.
fn replaced(
    module: &[u8],
    replacement: impl Fn(&Operator<'_>) -> Option<Instruction>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut changed = module.to_vec();
    let mut count = 0;
    each_instruction(module, |operator, instruction| {
        if let Some(replacement) = replacement(operator) {
            let start = instruction.as_ptr().addr() - module.as_ptr().addr();
            changed[start..start + instruction.len()].copy_from_slice(&replacement);
            count += 1;
        }
        Ok(())
    })?;
    if count == 0 {
        return Err("expected relaxed instructions, but found none".into());
    }
    Ok(changed)
}

/// Calls `visit` with each instruction and its bytes.
fn each_instruction<'a>(
    module: &'a [u8],
    mut visit: impl FnMut(&Operator<'a>, &'a [u8]) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    for payload in Parser::new(0).parse_all(module) {
        let Payload::CodeSectionEntry(function) = payload? else { continue };
        let mut operators = function.get_operators_reader()?;
        while !operators.eof() {
            let (operator, start) = operators.read_with_offset()?;
            visit(&operator, &module[start..operators.original_position()])?;
        }
    }
    Ok(())
}

fn is_relaxed(instruction: &[u8]) -> bool {
    let [VECTOR, low, high, ..] = *instruction else { return false };
    low & 0x80 != 0 && RELAXED.contains(&(u32::from(low & 0x7f) | u32::from(high) << 7))
}
