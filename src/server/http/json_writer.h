// Appends JSON pieces to a string, without a document tree: one token per event must stay cheap.
// What is written is always valid UTF-8. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spindle::server {

// A quoted JSON string. Bad UTF-8 sequences become U+FFFD (base/utf8.h).
void AppendJsonString(std::string_view text, std::string* out);

// What stands between its quotes. Texts that are cut between characters may be written one after
// the other.
void AppendJsonText(std::string_view text, std::string* out);

// Shortest decimal that reads back equal. REQUIRES: finite.
void AppendJsonNumber(float value, std::string* out);
void AppendJsonNumber(int64_t value, std::string* out);
void AppendJsonNumber(uint64_t value, std::string* out);

}  // namespace spindle::server
