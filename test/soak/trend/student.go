package trend

import "math"

// quantile is the value below which Student's t with so many degrees of freedom is with probability p, above 0.5.
func quantile(p, freedom float64) float64 {
	low, high := 0.0, 1.0
	for probability(high, freedom) < p && high < 1e9 {
		high *= 2
	}
	for range 100 {
		if middle := (low + high) / 2; probability(middle, freedom) < p {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// probability is that of Student's t to be below x, which is not negative.
func probability(x, freedom float64) float64 {
	return 1 - 0.5*incompleteBeta(freedom/2, 0.5, freedom/(freedom+x*x))
}

// incompleteBeta is the regularized incomplete beta function, by its continued fraction (Numerical Recipes, 6.4).
func incompleteBeta(a, b, x float64) float64 {
	if x <= 0 || x >= 1 {
		return min(max(x, 0), 1)
	}
	if x > (a+1)/(a+b+2) { // where the fraction converges slowly
		return 1 - incompleteBeta(b, a, 1-x)
	}
	gammaA, _ := math.Lgamma(a)
	gammaB, _ := math.Lgamma(b)
	gammaAB, _ := math.Lgamma(a + b)
	front := math.Exp(gammaAB-gammaA-gammaB+a*math.Log(x)+b*math.Log(1-x)) / a
	const tiny = 1e-300
	away := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	fraction := d
	for m := 1.0; m < 300; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d, c = 1/away(1+even*d), away(1+even/c)
		fraction *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d, c = 1/away(1+odd*d), away(1+odd/c)
		fraction *= d * c
		if math.Abs(d*c-1) < 1e-14 {
			break
		}
	}
	return front * fraction
}
