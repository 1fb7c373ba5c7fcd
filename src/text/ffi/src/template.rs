//! Chat templates through minijinja, set up as transformers sets up Jinja2.

use crate::python;
use crate::{entry, invalid, slice, text, Code, Failure, Output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use std::io;

pub struct Template {
    environment: Environment<'static>,
}

/// About one second of template work (measured in tests/unit/text); large strings cost fuel too.
const FUEL: u64 = 20_000_000;
const MAX_OUTPUT_BYTES: usize = 64 << 20;
const NAME: &str = "chat template";

/// Marks an error that the template raised itself.
#[derive(Debug)]
struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("raise_exception")
    }
}

impl std::error::Error for Raised {}

struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("limit"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failure(error: Error) -> Failure {
    let exhausted = |what| Failure(Code::ResourceExhausted, format!("{NAME}: {what}"));
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let raised = std::error::Error::source(&error).is_some_and(|source| source.is::<Raised>());
    match error.kind() {
        _ if raised => invalid(detail),
        ErrorKind::OutOfFuel => exhausted("it runs for too long"),
        ErrorKind::WriteFailure => exhausted("its output is above 64 MiB"),
        _ => invalid(format!("{NAME}, line {}: {detail}", error.line().unwrap_or(0))),
    }
}

impl Template {
    fn new(source: &str) -> Result<Self, Failure> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(failure)?);
        env.set_fuel(Some(FUEL));
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(python::methods);
        env.set_formatter(|out, _, value| out.write_str(&python::string(value)?).map_err(Error::from));
        env.add_filter("tojson", python::tojson);
        env.add_filter("string", |value: &Value| python::string(value));
        // Python strings and dicts have a length and an index operator: Jinja2 calls both sequences.
        env.add_test("sequence", |value: &Value| {
            matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
        });
        // None can be looped over in minijinja, not in Python.
        env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.to_vec()));
        env.add_function("joiner", minijinja_contrib::globals::joiner);
        env.add_function("strftime_now", python::strftime_now);
        env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
            let message = python::string(message)?;
            Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
        });
        env.add_template_owned(NAME, source.to_owned()).map_err(failure)?;
        Ok(Template { environment: env })
    }

    fn render(&self, variables: &[u8], now: i64) -> Result<Vec<u8>, Failure> {
        let variables: Value = serde_json::from_slice(variables).map_err(invalid)?;
        python::NOW.set(now);
        let template = self.environment.get_template(NAME).map_err(failure)?;
        let mut output = Limited(Vec::new());
        template.render_captured_to(variables, &mut output).map_err(failure)?;
        Ok(output.0)
    }
}

/// Compiles a template; null on failure.
/// # Safety
/// See `slice`; `code` is writable.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_template_new(
    data: *const u8, size: usize, output: Output, code: *mut i32,
) -> *mut Template {
    let mut made = std::ptr::null_mut();
    *code = entry(output, || {
        made = Box::into_raw(Box::new(Template::new(text(data, size, "chat template")?)?));
        Ok(())
    });
    made
}

/// # Safety
/// `template` came from `spindle_text_template_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_template_free(template: *mut Template) {
    drop(Box::from_raw(template));
}

/// Writes the rendered text. `variables`: a JSON object; `now`: Unix seconds for strftime_now.
/// # Safety
/// `template` is alive; see `slice`.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_template_render(
    template: *const Template, variables: *const u8, size: usize, now: i64, output: Output,
) -> i32 {
    entry(output, || Ok(output.write(&(*template).render(slice(variables, size), now)?)))
}
