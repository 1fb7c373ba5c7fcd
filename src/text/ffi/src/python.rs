//! What chat templates expect from Python: json.dumps, repr, string methods, strftime.

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::cell::Cell;
use std::fmt::Write;

/// How a value is written: as json.dumps does, or as repr does.
struct Style {
    json: bool,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

fn refuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Python's shortest spelling of a float: exponent form below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    match scientific.split_once('e').map(|(digits, power)| (digits, power.parse::<i32>())) {
        Some((_, Ok(-4..=15))) => format!("{number:?}"),
        Some((digits, Ok(power))) => {
            format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
        }
        _ => scientific,
    }
}

fn quote(out: &mut String, text: &str, style: &Style) {
    let mark = if style.json || text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' if style.json => out.push_str("\\b"),
            '\u{c}' if style.json => out.push_str("\\f"),
            c if c == mark => out.extend(['\\', c]),
            c if style.json && (c < ' ' || style.ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c if !style.json && (c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}') => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

fn newline(out: &mut String, style: &Style, level: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(level));
    }
}

fn write(out: &mut String, value: &Value, style: &Style, level: usize) -> Result<(), Error> {
    let word = |json: &'static str, python: &'static str| if style.json { json } else { python };
    match value.kind() {
        ValueKind::None => out.push_str(word("null", "None")),
        ValueKind::Bool if value.is_true() => out.push_str(word("true", "True")),
        ValueKind::Bool => out.push_str(word("false", "False")),
        ValueKind::Number if value.is_integer() => {
            let _ = write!(out, "{value}");
        }
        ValueKind::Number => match f64::try_from(value.clone())? {
            number if number.is_nan() => out.push_str(word("NaN", "nan")),
            number if number.is_infinite() => {
                out.push_str(if number < 0.0 { "-" } else { "" });
                out.push_str(word("Infinity", "inf"));
            }
            number => out.push_str(&float(number)),
        },
        ValueKind::String => quote(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Map => write_map(out, value, style, level)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple() && !style.json;
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count == 0 { "" } else { &style.item });
                newline(out, style, level + 1);
                write(out, &item, style, level + 1)?;
                count += 1;
            }
            if count > 0 {
                newline(out, style, level);
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Undefined if !style.json => out.push_str("Undefined"),
        kind => return Err(refuse(format!("a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

fn write_map(out: &mut String, value: &Value, style: &Style, level: usize) -> Result<(), Error> {
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    if style.sort {
        keys.sort();
    }
    out.push('{');
    for (index, key) in keys.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { &style.item });
        newline(out, style, level + 1);
        if style.json && key.as_str().is_none() {
            let mut text = String::new();
            write(&mut text, key, style, 0)?;
            quote(out, &text, style);
        } else {
            write(out, key, style, 0)?;
        }
        out.push_str(&style.key);
        write(out, &value.get_item(key)?, style, level + 1)?;
    }
    if !keys.is_empty() {
        newline(out, style, level);
    }
    out.push('}');
    Ok(())
}

/// str(value)
pub fn string(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match (value.as_str(), value.is_undefined()) {
        (Some(text), _) => out.push_str(text),
        (None, true) => {}
        (None, false) => {
            let (item, key) = (", ".into(), ": ".into());
            write(
                &mut out,
                value,
                &Style { json: false, ascii: false, sort: false, indent: None, item, key },
                0,
            )?;
        }
    }
    Ok(out)
}

/// tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False), without HTML escapes.
pub fn tojson(
    state: &State, value: &Value, positional: Rest<Value>, kwargs: Kwargs,
) -> Result<String, Error> {
    let pick = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let named = kwargs.get::<Option<Value>>(name)?;
        Ok(positional.get(index).cloned().or(named).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let indent = match pick(1, "indent")? {
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(v)?.clamp(0, 64) as usize),
        }),
        None => None,
    };
    let (item, key) = match pick(2, "separators")? {
        Some(pair) => (string(&pair.get_item_by_index(0)?)?, string(&pair.get_item_by_index(1)?)?),
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let ascii = pick(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let sort = pick(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(&mut out, value, &Style { json: true, ascii, sort, indent, item, key }, 0)?;
    state.consume_fuel(out.len() as u64 / 64)?;
    Ok(out)
}

/// Methods of Python's str and list that pycompat lacks, then pycompat.
pub fn methods(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        if name == "index" && value.kind() == ValueKind::Seq {
            let (wanted,): (&Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|item| item == *wanted);
            return found.map(Value::from).ok_or_else(|| refuse("value is not in list"));
        }
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match (name, args) {
        ("removeprefix", _) => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        ("removesuffix", _) => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        ("partition", _) => {
            let (mark,): (&str,) = from_args(args)?;
            let parts = text.split_once(mark).map(|(head, tail)| [head, mark, tail]);
            Ok(Value::from_iter(parts.unwrap_or([text, "", ""])))
        }
        ("rpartition", _) => {
            let (mark,): (&str,) = from_args(args)?;
            let parts = text.rsplit_once(mark).map(|(head, tail)| [head, mark, tail]);
            Ok(Value::from_iter(parts.unwrap_or(["", "", text])))
        }
        ("rsplit", [mark, rest @ ..]) if mark.as_str().is_some_and(|mark| !mark.is_empty()) => {
            let (limit,): (Option<i64>,) = from_args(rest)?;
            let limit =
                limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(limit, mark.as_str().unwrap_or_default()).collect();
            parts.reverse();
            Ok(Value::from_iter(parts))
        }
        ("zfill", _) => {
            let (width,): (usize,) = from_args(args)?;
            let zeros = width.saturating_sub(text.chars().count());
            state.consume_fuel(zeros as u64 / 64)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(format!("{sign}{}{digits}", "0".repeat(zeros)).into())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

thread_local! {
    /// Unix seconds that strftime_now sees during the render that runs on this thread.
    pub static NOW: Cell<i64> = const { Cell::new(0) };
}

/// strftime_now(format), local time.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let format = std::ffi::CString::new(format).map_err(|_| refuse("NUL in a time format"))?;
    let mut buffer = [0u8; 1024];
    // SAFETY: both calls write only into the objects passed, whose sizes they are given.
    let length = unsafe {
        let mut fields = std::mem::zeroed();
        libc::localtime_r(&NOW.get(), &mut fields);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &fields)
    };
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
