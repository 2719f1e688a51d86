#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace shapes {

template <typename T>
struct Point {
    T x{}, y{};
    Point operator+(const Point &other) const { return {x + other.x, y + other.y}; }
};

class Shape {
public:
    explicit Shape(std::string name) : name_(std::move(name)) {}
    virtual ~Shape() = default;
    virtual double area() const = 0;
    const std::string &name() const noexcept { return name_; }

private:
    std::string name_;
};

class Circle final : public Shape {
public:
    explicit Circle(double radius) : Shape("circle"), radius_(radius) {}
    double area() const override { return 3.14159 * radius_ * radius_; }

private:
    double radius_;
};

} // namespace shapes

template <typename Container>
auto largest(const Container &all) -> decltype(all.front().get()) {
    auto found = std::max_element(all.begin(), all.end(), [](const auto &a, const auto &b) {
        return a->area() < b->area();
    });
    return found == all.end() ? nullptr : found->get();
}

int main() {
    std::vector<std::unique_ptr<shapes::Shape>> all;
    for (int i = 1; i <= 3; ++i) {
        all.push_back(std::make_unique<shapes::Circle>(i * 1.5));
    }
    try {
        if (const auto *best = largest(all); best != nullptr) {
            std::cout << best->name() << ": " << best->area() << "\n";
        }
    } catch (const std::exception &error) {
        std::cerr << R"(failed: ")" << error.what() << '\n';
        return 1;
    }
    constexpr shapes::Point<int> origin{0, 0};
    static_assert(sizeof(origin) >= 2 * sizeof(int), "two numbers");
    return origin.x;
}
