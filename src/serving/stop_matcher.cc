#include "serving/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace spindle::serving {

StopSet::StopSet(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& text : strings_) {
    std::vector<uint32_t> failure(text.size() + 1, 0);
    uint32_t border = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) {
        border = failure[border];
      }
      border += text[i] == text[border] ? 1U : 0U;
      failure[i + 1] = border;
    }
    failure_.push_back(std::move(failure));
  }
}

std::optional<size_t> StopMatcher::Feed(char byte) {
  std::optional<size_t> complete;
  for (size_t i = 0; i < matched_.size(); ++i) {
    const std::string& text = set_.strings_[i];
    uint32_t& length = matched_[i];
    while (length > 0 && text[length] != byte) {
      length = set_.failure_[i][length];
    }
    length += text[length] == byte ? 1U : 0U;
    if (length == text.size() &&
        (!complete.has_value() || text.size() > set_.strings_[*complete].size())) {
      complete = i;
    }
  }
  return complete;
}

size_t StopMatcher::held() const {
  size_t held = 0;
  for (const uint32_t length : matched_) {
    held = std::max<size_t>(held, length);
  }
  return held;
}

}  // namespace spindle::serving
