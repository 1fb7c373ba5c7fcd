// Chat template source as minijinja reads it, where Jinja2 (with transformers' extension) says the
// same otherwise. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace spindle::text {

// Lines keep their numbers. Rewrites
//   {% generation %} … {% endgeneration %}   to a `with` block: a scope without other effect when
//   rendering 'format' % operand                       to a call of the printf-style `format`
//   filter
// Text outside of tags, comments and strings are left as they are.
[[nodiscard]] std::string RewriteTemplate(std::string_view source);

// True when a tag or an expression names the variable `tools`.
[[nodiscard]] bool MentionsTools(std::string_view source);

}  // namespace spindle::text
